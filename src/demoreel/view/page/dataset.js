// The episodes of a dataset: a table of any length, of which only the rows in view exist, beside
// plots of their numbers and what `check` found.
import { drop, prepare } from "./ahead.js";
import { draftButton, draftOf } from "./draft.js";
import { Findings, mark } from "./findings.js";
import { Plots, short } from "./plots.js";
import {
  clear,
  count,
  duration,
  element,
  getJson,
  later,
  scale,
  scaled,
  setKeys,
  setPath,
} from "./tools.js";

let ROW = 56 * scale();
const PAGE = 100;
const TALLEST = 8e6; // pixels; browsers stop near 16 million

const NUMBERS = new Set(["#", "frames", "time", "idle", "jerk"]);

// What a column is sorted by, its head, its width, and what it shows of a row.
const COLUMNS = [
  ["index", "#", "72px"],
  [null, "first frame", "92px"],
  ["length", "frames", "64px"],
  ["length", "time", "64px"],
  ["task", "task", "minmax(120px, 1fr)"],
  [null, "motion", "104px"],
  ["idle", "idle", "52px"],
  ["jerk", "jerk", "56px"],
  ["success", "success", "64px"],
  ["outliers", "outlier", "60px"],
  ["findings", "check", "60px"],
  ["flags", "flags", "104px"],
];

export async function showDataset(main, id, asked, signal) {
  const [info, draft] = await Promise.all([getJson(`/api/d/${id}`, signal), draftOf(id)]);
  signal.throwIfAborted();
  const cameras = Object.entries(info.features).filter(([, feature]) => feature.kind === "camera");
  const columns = COLUMNS,
    template = scaled(columns.map(([, , width]) => width).join(" "));
  setPath([["datasets", "#/"], [info.name]]);
  document
    .getElementById("facts")
    .append(
      element(
        "span",
        {},
        [
          info.layout,
          info.robot,
          count(info.episodes, "episode"),
          duration(info.frames / info.fps),
          `${info.fps} fps`,
          count(cameras.length, "camera"),
        ]
          .filter(Boolean)
          .join(" · "),
      ),
    );

  const ranges = new Map(
    asked.getAll("r").map((text) => {
      const at = text.split(":"),
        high = Number(at.pop()),
        low = Number(at.pop());
      return [at.join(":"), [low, high]];
    }),
  );
  const state = {
    sort: asked.get("sort") || "index",
    desc: asked.get("desc") === "1",
    q: asked.get("q") || "",
    where: asked.get("where") || "",
    task: asked.get("task"),
    only: asked.get("only") || "",
    panel: asked.get("panel") || "plots",
    total: info.episodes,
    pages: new Map(),
    motion: new Map(),
    unseen: new Set(), // episodes whose first frame cannot be shown
    at: 0,
    revision: info.revision,
    marked: new Set(),
  };
  const isSql = element(
    "button",
    {
      "aria-pressed": String(Boolean(state.where)),
      title: "Filter by an SQL condition, as demoreel cut select --where",
    },
    "SQL",
  );
  const search = element("input", {
    type: "search",
    "aria-label": "Filter episodes",
    value: state.where || state.q,
  });
  const note = element("span", { class: "note", role: "status" });
  const wrong = element("span", { class: "problem", role: "alert" });
  const chips = element("span", { class: "chips" });
  const head = element("div", { class: "grid head", role: "row" });
  head.style.gridTemplateColumns = template;
  const tall = element("div", { class: "tall" });
  const scroll = element("div", { class: "scroll", role: "table", "aria-label": "Episodes" }, tall);
  const changes = draftButton(draft, info);
  const outliers = element(
    "button",
    {
      "aria-pressed": "false",
      title: "Only episodes far from the others (o)",
      onclick: () => only("outliers"),
    },
    "outliers",
  );
  const plotsTab = element(
    "button",
    { title: "Distributions (d)", onclick: () => panel("plots") },
    "distributions",
  );
  const checkTab = element(
    "button",
    { class: "steady", title: "Findings of check (f)", onclick: () => panel("findings") },
    "check",
  );
  const compare = element(
    "button",
    { title: "Compare the marked episodes (v)", onclick: () => compareMarked() },
    "compare",
  );
  const plotsBox = element("div", { class: "panel", "aria-label": "Distributions" });
  const findingsBox = element("div", { class: "panel", "aria-label": "Findings of check" });
  main.append(
    element(
      "div",
      { class: "tools" },
      search,
      isSql,
      outliers,
      chips,
      note,
      wrong,
      element("span", { class: "space" }),
      compare,
      plotsTab,
      checkTab,
      changes,
    ),
    element(
      "div",
      { class: "beside" },
      element("div", { class: "table" }, head, scroll),
      plotsBox,
      findingsBox,
    ),
  );

  const sqlIsOn = () => isSql.getAttribute("aria-pressed") === "true";
  const hint = () => {
    search.placeholder = sqlIsOn()
      ? "length > 200 and task like '%cube%'"
      : "search tasks and numbers";
  };
  hint();

  // The filter, as requests and the address have it.
  function filterQuery() {
    const query = new URLSearchParams();
    for (const name of ["q", "where", "only"]) if (state[name]) query.set(name, state[name]);
    if (state.task !== null) query.set("task", state.task);
    for (const [key, [low, high]] of ranges) query.append("r", `${key}:${low}:${high}`);
    return query;
  }

  const plots = new Plots(
    plotsBox,
    ranges,
    () => reload(),
    (task) => {
      state.task = task;
      reload();
    },
  );
  let plotting = 0;
  const askPlots = async () => {
    const mine = ++plotting;
    try {
      const answer = await getJson(`/api/d/${id}/measures?${filterQuery()}`);
      if (mine !== plotting || state.left) return; // another filter is asked for
      plots.show(answer, state.task);
      outliers.textContent = answer.outliers ? count(answer.outliers, "outlier") : "outliers";
      // Rows that were shown before their episodes were measured are asked for again.
      if (answer.done !== state.measured) {
        state.measured = answer.done;
        refresh();
      }
      if (answer.done < answer.of)
        setTimeout(() => mine === plotting && !state.left && askPlots(), 1000);
    } catch (error) {
      if (mine === plotting) plots.note.textContent = error.message;
    }
  };
  const findings = new Findings(findingsBox, id, info, () => {
    checkTab.textContent = findings.summary;
    if (!findings.state.job || findings.state.job.state === "done") refresh();
  });

  function panel(which) {
    state.panel = state.panel === which ? "none" : which;
    drawPanels();
    remember();
  }
  function drawPanels() {
    plotsBox.hidden = state.panel !== "plots";
    findingsBox.hidden = state.panel !== "findings";
    plotsTab.setAttribute("aria-pressed", String(!plotsBox.hidden));
    checkTab.setAttribute("aria-pressed", String(!findingsBox.hidden));
  }
  drawPanels();
  function only(which) {
    state.only = state.only === which ? "" : which;
    reload();
  }
  function drawChips() {
    outliers.setAttribute("aria-pressed", String(state.only === "outliers"));
    clear(chips);
    const chip = (text, drop) =>
      chips.append(
        element(
          "button",
          {
            class: "chip",
            title: "Take this filter away",
            onclick: () => {
              drop();
              reload();
            },
          },
          `${text} ✕`,
        ),
      );
    for (const [key, [low, high]] of ranges)
      chip(`${key} ${short(low)} to ${short(high)}`, () => ranges.delete(key));
    if (state.task !== null)
      chip(`task: ${state.task.slice(0, 30)}`, () => {
        state.task = null;
      });
    if (state.only === "findings")
      chip("with findings", () => {
        state.only = "";
      });
    compare.disabled = state.marked.size < 2;
    compare.textContent = state.marked.size ? `compare ${state.marked.size}` : "compare";
  }

  function drawHead() {
    clear(head);
    for (const [key, name] of columns) {
      const arrow = key === state.sort ? (state.desc ? " ▾" : " ▴") : "";
      head.append(
        key
          ? element(
              "button",
              {
                "aria-sort":
                  key === state.sort ? (state.desc ? "descending" : "ascending") : "none",
                title: `Sort by ${name}`,
                class: NUMBERS.has(name) ? "number" : "",
                onclick: () => {
                  state.desc = key === state.sort ? !state.desc : key !== "index" && key !== "task";
                  state.sort = key;
                  reload();
                },
              },
              name + arrow,
            )
          : element("span", { class: NUMBERS.has(name) ? "number" : "" }, name),
      );
    }
  }

  let waiting = new AbortController();
  const page = (number) => {
    if (state.pages.has(number)) return state.pages.get(number);
    const query = filterQuery();
    for (const [name, value] of Object.entries({
      from: number * PAGE,
      n: PAGE,
      sort: state.sort,
      desc: state.desc ? 1 : 0,
    }))
      query.set(name, value);
    const promise = getJson(`/api/d/${id}/episodes?${query}`, waiting.signal);
    state.pages.set(number, promise);
    promise
      .then((answer) => {
        promise.rows = answer.rows;
        if (state.pages.get(number) !== promise) return; // asked for again: that answer is newer
        state.total = answer.total;
        state.of = answer.of;
        wrong.textContent = "";
        draw();
      })
      .catch((error) => {
        if (state.pages.get(number) !== promise) return;
        state.pages.delete(number);
        if (error.name === "AbortError") return;
        wrong.textContent = error.message;
        state.total = 0;
        draw();
      });
    return promise;
  };

  const rowHeight = () => Math.min(ROW, TALLEST / Math.max(1, state.total));
  const isTall = () => rowHeight() < ROW;
  const inView = () => Math.max(1, Math.floor(scroll.clientHeight / ROW));
  // Where the table is taller than a browser can scroll, the bar's whole way is that of all rows.
  const way = () => Math.max(1, state.total * rowHeight() - scroll.clientHeight);
  const firstInView = () =>
    isTall()
      ? Math.round((scroll.scrollTop / way()) * (state.total - inView()))
      : Math.floor(scroll.scrollTop / ROW);
  const visible = () => {
    const first = firstInView();
    return [Math.max(0, first - (isTall() ? 0 : 2)), Math.min(state.total, first + inView() + 3)];
  };

  function draw() {
    drawHead();
    tall.style.height = `${state.total * rowHeight()}px`;
    note.textContent = `${count(state.total, "episode")}${state.of !== undefined && state.of !== state.total ? ` of ${state.of.toLocaleString("en")}` : ""}`;
    const [first, stop] = visible();
    const top = isTall() ? scroll.scrollTop : first * ROW;
    clear(tall);
    const missing = [];
    for (let place = first; place < stop; place++) {
      const loaded = page(Math.floor(place / PAGE)).rows;
      const row = loaded && loaded[place % PAGE];
      const item = element("a", { class: `item grid${place === state.at ? " at" : ""}` });
      item.style.gridTemplateColumns = template;
      item.style.top = `${top + (place - first) * ROW}px`;
      item.style.height = `${ROW}px`;
      if (row) {
        const change = draft.of(row.index);
        item.classList.toggle("deleted", Boolean(change.deleted));
        item.classList.toggle("changed", Object.keys(change).length > 0);
        const task = change.task ?? row.tasks.join("; ");
        item.href = `#/d/${id}/e/${row.index}`;
        item.dataset.episode = row.index;
        item.addEventListener("pointerenter", () => prepare(id, row.index, info));
        item.addEventListener("pointerdown", () => prepare(id, row.index, info, { atOnce: true }));
        item.addEventListener("focus", () => prepare(id, row.index, info));
        const thumb = state.unseen.has(row.index)
          ? element("span", { class: "thumb none" }, "no image")
          : cameras.length
            ? element("img", {
                class: "thumb",
                loading: "lazy",
                alt: `First frame of episode ${row.index}`,
                width: 80,
                height: 52,
                src: `/api/d/${id}/e/${row.index}/frame?camera=${encodeURIComponent(cameras[0][0])}&i=0&w=160&v=${state.revision}`,
                onerror: (event) => {
                  state.unseen.add(row.index);
                  event.target.replaceWith(element("span", { class: "thumb none" }, "no image"));
                },
              })
            : element("span");
        const spark = element("canvas", {
          class: "spark",
          width: 256,
          height: 64,
          "aria-hidden": "true",
        });
        if (state.motion.has(row.index)) drawSpark(spark, state.motion.get(row.index));
        else missing.push(row.index);
        item.append(
          element("span", { class: "number" }, row.index),
          thumb,
          element("span", { class: "number" }, row.length.toLocaleString("en")),
          element("span", { class: "number" }, duration(row.seconds)),
          element("span", { class: "cell", title: task }, task),
          spark,
          ...more(row),
        );
        item.classList.toggle("marked", state.marked.has(row.index));
      }
      tall.append(item);
    }
    if (!state.total && !wrong.textContent)
      tall.append(element("div", { class: "empty" }, "No episode meets this filter."));
    if (missing.length) askMotion(missing);
  }

  // Known later than the row: how still and rough it is, and what is wrong with it.
  function more(row) {
    const cells = [
      element(
        "span",
        { class: "number" },
        row.idle === undefined || row.idle === null ? "" : `${Math.round(100 * row.idle)} %`,
      ),
      element("span", { class: "number" }, short(row.jerk ?? NaN)),
    ];
    const success =
      draft.of(row.index).success ??
      (row.success === undefined || row.success === null ? null : row.success > 0);
    cells.push(
      success === null
        ? element("span", {})
        : element(
            "span",
            {
              class: `mark ${success ? "good" : "error"}`,
              role: "img",
              "aria-label": success ? "success" : "failure",
            },
            success ? "✓" : "✗",
          ),
    );
    cells.push(
      row.far?.length
        ? element(
            "span",
            { class: "far", title: `far from the others in ${row.far.join(", ")}` },
            `◎ ${row.far.length}`,
          )
        : element("span", {}),
    );
    cells.push(
      row.findings
        ? element(
            "span",
            { title: `${count(row.findings, "finding")} of check` },
            mark(row.worst),
            ` ${row.findings}`,
          )
        : element("span", {}),
    );
    cells.push(
      element(
        "span",
        { class: "flags" },
        flagsOf({ score: row.score, flag: row.flag, ...draft.of(row.index) }),
      ),
    );
    return cells;
  }

  const askMotion = later(async (episodes) => {
    let answer = {};
    try {
      answer = await getJson(`/api/d/${id}/motion?episodes=${episodes.join(",")}`);
    } catch {
      /* a table without these lines is still a table */
    }
    for (const episode of episodes) state.motion.set(episode, answer[episode] || []);
    draw();
  }, 60);

  function remember() {
    const query = filterQuery();
    if (state.sort !== "index") query.set("sort", state.sort);
    if (state.desc) query.set("desc", 1);
    if (state.panel !== "plots") query.set("panel", state.panel);
    history.replaceState(null, "", `#/d/${id}${query.size ? `?${query}` : ""}`);
  }
  // The same rows, asked for again; those that are shown stay until the answer is there.
  function refresh() {
    const before = state.pages;
    state.pages = new Map();
    const [first, stop] = visible();
    for (let number = Math.floor(first / PAGE); number * PAGE < stop; number++) {
      const rows = before.get(number)?.rows;
      page(number).rows = rows;
    }
  }
  function reload() {
    waiting.abort();
    waiting = new AbortController();
    state.pages.clear();
    state.at = 0;
    scroll.scrollTop = 0;
    wrong.textContent = "";
    remember();
    drawHead();
    drawChips();
    page(0); // draws when it is there; the rows of before stay until then
    askPlots();
  }
  const filter = later(() => {
    state.q = sqlIsOn() ? "" : search.value;
    state.where = sqlIsOn() ? search.value : "";
    reload();
  }, 200);
  search.addEventListener("input", filter);
  isSql.addEventListener("click", () => {
    isSql.setAttribute("aria-pressed", String(!sqlIsOn()));
    hint();
    filter();
  });
  scroll.addEventListener("scroll", () => requestAnimationFrame(draw));
  const resized = new ResizeObserver(() => {
    ROW = 56 * scale();
    draw();
  });
  resized.observe(scroll);
  draw();
  drawChips();
  page(0).then(askPlots, askPlots); // after the first rows: these wait for nothing
  draft.listeners.add(draw);
  const atEpisode = () => tall.querySelector(".at[data-episode]")?.dataset.episode;

  const sortBy = (by) => {
    const known = columns.map(([key]) => key).filter(Boolean);
    state.sort = known[(known.indexOf(state.sort) + by + known.length) % known.length];
    reload();
  };
  const compareMarked = () => {
    if (state.marked.size < 2) {
      note.textContent = "mark episodes with m first";
      return;
    }
    location.hash = `#/compare?${new URLSearchParams([...state.marked].map((episode) => ["e", `${id}:${episode}`]))}`;
  };
  const move = (by) => {
    state.at = Math.max(0, Math.min(state.total - 1, state.at + by));
    if (isTall()) {
      const first = firstInView(),
        wanted = state.at < first ? state.at : Math.max(first, state.at - inView() + 1);
      if (wanted !== first) scroll.scrollTop = (wanted / (state.total - inView())) * way();
    } else {
      const top = state.at * ROW;
      if (top < scroll.scrollTop) scroll.scrollTop = top;
      else if (top + ROW > scroll.scrollTop + scroll.clientHeight)
        scroll.scrollTop = top + ROW - scroll.clientHeight;
    }
    draw();
    if (atEpisode() !== undefined) prepare(id, atEpisode(), info);
  };
  setKeys([
    { keys: ["ArrowDown", "j"], shown: "↓ j", does: "next episode", run: () => move(1) },
    { keys: ["ArrowUp", "k"], shown: "↑ k", does: "previous episode", run: () => move(-1) },
    { keys: ["PageDown"], shown: "Page ↓", does: "ten on", run: () => move(10) },
    { keys: ["PageUp"], shown: "Page ↑", does: "ten back", run: () => move(-10) },
    { keys: ["Home"], shown: "Home", does: "first episode", run: () => move(-state.total) },
    { keys: ["End"], shown: "End", does: "last episode", run: () => move(state.total) },
    {
      keys: ["Enter"],
      shown: "Enter",
      does: "open",
      run: () => tall.querySelector(".at[href]")?.click(),
    },
    {
      keys: ["x", "Delete"],
      shown: "x",
      does: "delete the episode, or restore it",
      run: () => {
        const episode = atEpisode();
        if (episode !== undefined) draft.change(episode, { deleted: !draft.of(episode).deleted });
      },
    },
    {
      keys: ["m"],
      shown: "m",
      does: "mark the episode, to compare it",
      run: () => {
        const episode = Number(atEpisode());
        if (!state.marked.delete(episode)) state.marked.add(episode);
        drawChips();
        draw();
      },
    },
    { keys: ["v"], shown: "v", does: "compare the marked episodes", run: () => compareMarked() },
    { keys: ["d"], shown: "d", does: "the distributions, or not", run: () => panel("plots") },
    { keys: ["f"], shown: "f", does: "what check found, or not", run: () => panel("findings") },
    { keys: ["o"], shown: "o", does: "only outliers, or all", run: () => only("outliers") },
    {
      keys: ["w"],
      shown: "w",
      does: "only episodes with findings, or all",
      run: () => only("findings"),
    },
    {
      keys: ["l"],
      shown: "l",
      does: "what the loader sees of the episode",
      run: () => {
        const episode = atEpisode();
        if (episode !== undefined) location.hash = `#/d/${id}/loader?e=${episode}`;
      },
    },
    {
      keys: ["r"],
      shown: "r",
      does: "sort the other way",
      run: () => {
        state.desc = !state.desc;
        reload();
      },
    },
    { keys: [">"], shown: ">", does: "sort by the next column", run: () => sortBy(1) },
    { keys: ["<"], shown: "<", does: "sort by the column before", run: () => sortBy(-1) },
    {
      keys: ["q"],
      shown: "q",
      does: "filter by text, or by an SQL condition",
      run: () => isSql.click(),
    },
    { keys: ["u"], shown: "u", does: "undo", run: () => draft.undo() },
    { keys: ["U"], shown: "shift u", does: "redo", run: () => draft.redo() },
    {
      keys: ["c"],
      shown: "c",
      does: "the changes, and what to do with them",
      run: () => changes.click(),
    },
    { keys: ["/"], shown: "/", does: "filter", run: () => search.focus() },
    {
      keys: ["Escape"],
      shown: "Esc",
      does: "leave the filter, then the dataset",
      run: () => {
        if (document.activeElement === search) search.blur();
        else location.hash = "#/";
      },
    },
  ]);

  // A recorder in another process: a saved episode appears without a reload.
  const watch = setInterval(async () => {
    try {
      const now = await getJson(`/api/d/${id}/state`);
      if (now.revision !== state.revision) {
        state.revision = now.revision;
        state.unseen.clear();
        drop();
        refresh();
        askPlots();
      }
    } catch {
      /* the next look may succeed */
    }
  }, 1000);
  return () => {
    state.left = true;
    findings.close();
    changes.leave();
    draft.listeners.delete(draw);
    clearInterval(watch);
    resized.disconnect();
    waiting.abort();
  };
}

// What a person has said of an episode: a score, good or bad, to be recorded again.
function flagsOf(change) {
  return [change.score && `★${change.score}`, change.flag, change.redo && "⟲"]
    .filter(Boolean)
    .join(" ");
}

function drawSpark(canvas, values) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  context.lineWidth = 2;
  context.beginPath();
  values.forEach((value, number) => {
    const x = ((number + 0.5) * width) / values.length,
      y = height - 3 - value * (height - 6);
    if (number) context.lineTo(x, y);
    else context.moveTo(x, y);
  });
  context.stroke();
}
