// The episodes of a dataset: a table of any length, of which only the rows in view exist.
import { draftButton, draftOf } from "./draft.js";
import { clear, count, duration, element, getJson, later, setKeys, setPath } from "./tools.js";

const ROW = 56;
const PAGE = 100;
const COLUMNS = "70px 96px 90px 90px minmax(200px, 1fr) 150px";
const HEADS = [["index", "#"], [null, "first frame"], ["length", "frames"], [null, "length"], ["task", "task"], [null, "motion"]];
const TALLEST = 8e6; // pixels; browsers stop near 16 million

export async function showDataset(main, id, asked) {
  const [info, draft] = await Promise.all([getJson(`/api/d/${id}`), draftOf(id)]);
  const cameras = Object.entries(info.features).filter(([, feature]) => feature.kind === "camera");
  setPath([["datasets", "#/"], [info.name]]);
  document.getElementById("facts").append([info.layout, info.robot, count(info.episodes, "episode"),
    duration(info.frames / info.fps), `${info.fps} fps`, count(cameras.length, "camera")].filter(Boolean).join(" · "));

  const state = { sort: asked.get("sort") || "index", desc: asked.get("desc") === "1", q: asked.get("q") || "", where: asked.get("where") || "",
    total: info.episodes, pages: new Map(), motion: new Map(), at: Number(asked.get("at") || 0), revision: info.revision };
  const isSql = element("button", { "aria-pressed": String(Boolean(state.where)), title: "Filter by an SQL condition, as demoreel cut select --where" }, "SQL");
  const search = element("input", { type: "search", "aria-label": "Filter episodes", value: state.where || state.q });
  const note = element("span", { class: "note", role: "status" });
  const wrong = element("span", { class: "problem", role: "alert" });
  const head = element("div", { class: "grid head" });
  head.style.gridTemplateColumns = COLUMNS;
  const tall = element("div", { class: "tall" });
  const scroll = element("div", { class: "scroll" }, tall);
  const changes = draftButton(draft, info);
  main.append(element("div", { class: "tools" }, search, isSql, note, wrong, element("span", { class: "space" }), changes), head, scroll);

  const sqlIsOn = () => isSql.getAttribute("aria-pressed") === "true";
  const hint = () => { search.placeholder = sqlIsOn() ? "length > 200 and task like '%cube%'" : "search tasks and numbers"; };
  hint();

  function drawHead() {
    clear(head);
    for (const [key, name] of HEADS) {
      const mark = key === state.sort ? (state.desc ? " ▾" : " ▴") : "";
      head.append(key
        ? element("button", { "aria-sort": key === state.sort ? (state.desc ? "descending" : "ascending") : "none",
          onclick: () => { state.desc = key === state.sort ? !state.desc : false; state.sort = key; reload(); } }, name + mark)
        : element("span", {}, name));
    }
  }

  let waiting = new AbortController();
  const page = (number) => {
    if (state.pages.has(number)) return state.pages.get(number);
    const query = new URLSearchParams({ from: number * PAGE, n: PAGE, sort: state.sort, desc: state.desc ? 1 : 0, q: state.q, where: state.where });
    const promise = getJson(`/api/d/${id}/episodes?${query}`, waiting.signal);
    state.pages.set(number, promise);
    promise.then((answer) => { promise.rows = answer.rows; state.total = answer.total; state.of = answer.of; wrong.textContent = ""; draw(); })
      .catch((error) => {
        state.pages.delete(number);
        if (error.name === "AbortError") return;
        wrong.textContent = error.message;
        state.total = 0;
        draw();
      });
    return promise;
  };

  const rowHeight = () => Math.min(ROW, TALLEST / Math.max(1, state.total));
  const visible = () => {
    // Where the table is taller than a browser can scroll, a pixel of the bar is more than one row's.
    const first = Math.floor(scroll.scrollTop / rowHeight());
    return [Math.max(0, first - 2), Math.min(state.total, first + Math.ceil(scroll.clientHeight / ROW) + 3)];
  };

  function draw() {
    drawHead();
    tall.style.height = `${state.total * rowHeight()}px`;
    note.textContent = `${count(state.total, "episode")}${state.of !== undefined && state.of !== state.total ? ` of ${state.of.toLocaleString("en")}` : ""}`;
    const [first, stop] = visible();
    const top = first * rowHeight();
    clear(tall);
    const missing = [];
    for (let place = first; place < stop; place++) {
      const loaded = page(Math.floor(place / PAGE)).rows;
      const row = loaded && loaded[place % PAGE];
      const item = element("a", { class: `item grid${place === state.at ? " at" : ""}` });
      item.style.gridTemplateColumns = COLUMNS;
      item.style.top = `${top + (place - first) * ROW}px`;
      item.style.height = `${ROW}px`;
      if (row) {
        const change = draft.of(row.index);
        item.classList.toggle("deleted", Boolean(change.deleted));
        item.classList.toggle("changed", Object.keys(change).length > 0);
        const task = change.task ?? row.tasks.join("; ");
        item.href = `#/d/${id}/e/${row.index}`;
        item.dataset.episode = row.index;
        const thumb = cameras.length
          ? element("img", { class: "thumb", loading: "lazy", alt: `First frame of episode ${row.index}`, width: 80, height: 52,
            src: `/api/d/${id}/e/${row.index}/frame?camera=${encodeURIComponent(cameras[0][0])}&i=0&w=160&v=${state.revision}` })
          : element("span");
        const spark = element("canvas", { class: "spark", width: 256, height: 64, "aria-hidden": "true" });
        if (state.motion.has(row.index)) drawSpark(spark, state.motion.get(row.index));
        else missing.push(row.index);
        item.append(element("span", { class: "number" }, row.index), thumb, element("span", { class: "number" }, row.length.toLocaleString("en")),
          element("span", { class: "number" }, duration(row.seconds)), element("span", { class: "cell", title: task }, task), spark);
      }
      tall.append(item);
    }
    if (!state.total && !wrong.textContent) tall.append(element("div", { class: "empty" }, "No episode meets this filter."));
    if (missing.length) askMotion(missing);
  }

  const askMotion = later(async (episodes) => {
    try {
      const answer = await getJson(`/api/d/${id}/motion?episodes=${episodes.join(",")}`);
      for (const episode of episodes) state.motion.set(episode, answer[episode] || []);
      draw();
    } catch { /* a table without these lines is still a table */ }
  }, 60);

  function reload() {
    waiting.abort();
    waiting = new AbortController();
    state.pages.clear();
    state.at = 0;
    scroll.scrollTop = 0;
    wrong.textContent = "";
    const query = new URLSearchParams(Object.entries({ sort: state.sort, desc: state.desc ? 1 : "", q: state.q, where: state.where }).filter(([, value]) => value));
    history.replaceState(null, "", `#/d/${id}${query.size ? `?${query}` : ""}`);
    drawHead();
    page(0); // draws when it is there; the rows of before stay until then
  }
  const filter = later(() => {
    state.q = sqlIsOn() ? "" : search.value;
    state.where = sqlIsOn() ? search.value : "";
    reload();
  }, 200);
  search.addEventListener("input", filter);
  isSql.addEventListener("click", () => { isSql.setAttribute("aria-pressed", String(!sqlIsOn())); hint(); filter(); });
  scroll.addEventListener("scroll", () => requestAnimationFrame(draw));
  const resized = new ResizeObserver(() => draw());
  resized.observe(scroll);
  draw();
  draft.listeners.add(draw);
  const atEpisode = () => tall.querySelector(".at[data-episode]")?.dataset.episode;

  const move = (by) => {
    state.at = Math.max(0, Math.min(state.total - 1, state.at + by));
    const top = state.at * rowHeight();
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    else if (top + ROW > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + ROW - scroll.clientHeight;
    draw();
  };
  setKeys([
    { keys: ["ArrowDown", "j"], shown: "↓ j", does: "next episode", run: () => move(1) },
    { keys: ["ArrowUp", "k"], shown: "↑ k", does: "previous episode", run: () => move(-1) },
    { keys: ["PageDown"], shown: "Page ↓", does: "ten on", run: () => move(10) },
    { keys: ["PageUp"], shown: "Page ↑", does: "ten back", run: () => move(-10) },
    { keys: ["Home"], shown: "Home", does: "first episode", run: () => move(-state.total) },
    { keys: ["End"], shown: "End", does: "last episode", run: () => move(state.total) },
    { keys: ["Enter"], shown: "Enter", does: "open", run: () => tall.querySelector(".at[href]")?.click() },
    { keys: ["x", "Delete"], shown: "x", does: "delete the episode, or restore it",
      run: () => { const episode = atEpisode(); if (episode !== undefined) draft.change(episode, { deleted: !draft.of(episode).deleted }); } },
    { keys: ["u"], shown: "u", does: "undo", run: () => draft.undo() },
    { keys: ["U"], shown: "shift u", does: "redo", run: () => draft.redo() },
    { keys: ["c"], shown: "c", does: "the changes, and what to do with them", run: () => changes.click() },
    { keys: ["/"], shown: "/", does: "filter", run: () => search.focus() },
    { keys: ["Escape"], shown: "Esc", does: "leave the filter, then the dataset",
      run: () => { if (document.activeElement === search) search.blur(); else location.hash = "#/"; } },
  ]);

  // A recorder in another process: a saved episode appears without a reload.
  const watch = setInterval(async () => {
    try {
      const now = await getJson(`/api/d/${id}/state`);
      if (now.revision !== state.revision) {
        state.revision = now.revision;
        state.pages.clear();
        draw();
      }
    } catch { /* the next look may succeed */ }
  }, 1000);
  return () => { changes.leave(); draft.listeners.delete(draw); clearInterval(watch); resized.disconnect(); waiting.abort(); };
}

function drawSpark(canvas, values) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  context.lineWidth = 2;
  context.beginPath();
  values.forEach((value, number) => {
    const x = (number + 0.5) * width / values.length, y = height - 3 - value * (height - 6);
    if (number) context.lineTo(x, y); else context.moveTo(x, y);
  });
  context.stroke();
}
