// One episode: its cameras in step, exact to the frame, with its numbers under the same cursor.
import { Charts, parseColumns } from "./charts.js";
import { draftButton, draftOf } from "./draft.js";
import { ServerImages, openImages } from "./images.js";
import { clear, element, getBytes, getJson, later, problem, setKeys, setPath } from "./tools.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8];
const AHEAD = 24;

export async function showEpisode(main, id, number, asked) {
  const [info, episode, draft] = await Promise.all([getJson(`/api/d/${id}`), getJson(`/api/d/${id}/e/${number}`), draftOf(id)]);
  const base = `/api/d/${id}/e/${number}`;
  const length = episode.length;
  setPath([["datasets", "#/"], [info.name, `#/d/${id}`], [`episode ${number}`]]);
  const facts = document.getElementById("facts");
  const task = element("span", {});
  const changes = draftButton(draft, info);
  facts.append(task, " ", changes);

  const cameras = element("div", { class: "cameras" });
  const side = element("aside", { class: "side", "aria-label": "The row of this frame" });
  const slider = element("input", { type: "range", min: 0, max: length - 1, step: 1, value: 0, "aria-label": "Frame" });
  const loop = element("div", { class: "loop" });
  const cutAway = element("div", { class: "cut" });
  const status = element("output", {});
  const playButton = element("button", { title: "Play (space)", "aria-label": "Play" }, "▶");
  const speed = element("select", { "aria-label": "Speed", title: "Speed (- and +)" }, ...SPEEDS.map((value) => element("option", { value }, `${value}×`)));
  speed.value = "1";
  const dropped = element("span", { class: "dim" });
  const transport = element("div", { class: "transport" }, playButton,
    element("button", { title: "One frame back (←)", "aria-label": "One frame back", onclick: () => step(-1) }, "◂"),
    element("button", { title: "One frame on (→)", "aria-label": "One frame on", onclick: () => step(1) }, "▸"),
    speed, element("div", { class: "slider" }, loop, cutAway, slider), status, dropped);
  const plots = element("div", { class: "charts" });
  main.append(element("div", { class: "episode" }, cameras, side, transport, plots));

  // Cameras

  const views = await Promise.all(Object.entries(episode.cameras).map(async ([camera, way]) => {
    const size = info.features[camera].size;
    const canvas = element("canvas", { width: size[1], height: size[0], "data-camera": camera, role: "img", "aria-label": `Camera ${camera}` });
    const note = element("span", { class: "way" });
    const box = element("div", { class: "camera" }, canvas, element("span", { class: "name" }, camera.replace("observation.images.", "")), note);
    cameras.append(box);
    const view = { camera, canvas, box, note, size, context: canvas.getContext("2d", { alpha: false }), images: null };
    try {
      view.images = await openImages(base, camera, way, length, size);
      note.textContent = view.images.shown;
    } catch (error) { box.append(problem(error)); }
    canvas.addEventListener("mousemove", (event) => {
      if (!view.images?.isDepth) return;
      const area = canvas.getBoundingClientRect(), scale = Math.min(area.width / size[1], area.height / size[0]);
      const x = (event.clientX - area.left - (area.width - size[1] * scale) / 2) / (size[1] * scale);
      const y = (event.clientY - area.top - (area.height - size[0] * scale) / 2) / (size[0] * scale);
      const metres = x >= 0 && x < 1 && y >= 0 && y < 1 ? view.images.metres(state.shown, x, y) : null;
      note.textContent = metres === null ? view.images.shown : `${metres.toFixed(3)} m`;
    });
    return view;
  }));
  const columns = views.length <= 1 ? 1 : views.length <= 4 ? 2 : views.length <= 9 ? 3 : 4;
  cameras.style.gridTemplateColumns = `repeat(${views.length === 3 ? 3 : columns}, minmax(0, 1fr))`;
  cameras.style.gridAutoRows = "minmax(0, 1fr)";

  // Where the browser fails to decode, the server does.
  function fallBack(view, error) {
    if (!(view.images instanceof ServerImages)) {
      view.images.close();
      view.images = new ServerImages(base, view.camera, { way: "frames" }, length, view.size);
      view.note.textContent = view.images.shown;
      view.note.title = String(error.message || error);
      return true;
    }
    clear(view.box.querySelector(".error") || view.box.appendChild(element("div", { class: "error" })));
    view.box.querySelector(".error").append(problem(error));
    view.images.close();
    view.images = null;
    return false;
  }

  // The frame that is shown

  const state = { wanted: 0, shown: -1, playing: false, from: null, to: null, dropped: 0, stalled: 0 };
  let wish = new AbortController();
  let busy = false;

  function draw(frame) {
    for (const view of views) {
      if (!view.images) continue;
      const image = view.images.look(frame);
      if (!image) continue;
      const { displayWidth = image.width, displayHeight = image.height } = image;
      if (view.canvas.width !== displayWidth || view.canvas.height !== displayHeight) Object.assign(view.canvas, { width: displayWidth, height: displayHeight });
      view.context.drawImage(image, 0, 0, displayWidth, displayHeight);
      view.canvas.dataset.frame = frame;
    }
    state.shown = frame;
    slider.value = frame;
    status.textContent = `frame ${frame} / ${length}   ${(frame / info.fps).toFixed(3)} s`;
    charts?.show(frame);
    showRow(frame);
    main.dataset.shown = frame;
    remember();
  }

  const isReady = (frame) => views.every((view) => !view.images || view.images.has(frame));

  async function load(frame, ahead, signal) {
    await Promise.all(views.map(async (view) => {
      while (view.images) {
        try { await view.images.frame(frame, ahead, signal); return; }
        catch (error) {
          if (error.name === "AbortError") throw error;
          if (!fallBack(view, error)) return;
        }
      }
    }));
  }

  // Shows the frame that was wished last; those in between are left out while one is decoded.
  async function go() {
    if (busy) return;
    busy = true;
    try {
      while (state.shown !== state.wanted) {
        const frame = state.wanted;
        try { await load(frame, 0, wish.signal); } catch (error) { if (error.name !== "AbortError") throw error; continue; }
        draw(frame);
      }
    } finally { busy = false; }
  }

  function seek(frame) {
    state.wanted = Math.max(0, Math.min(length - 1, frame));
    if (state.playing) restart();
    return go();
  }
  const step = (by) => { pause(); return seek(state.wanted + by); };

  // Playing: the clock runs on while all cameras have their frame, and waits where one has not.

  let clock = 0, begin = 0;
  const rate = () => info.fps * Number(speed.value);
  const bounds = () => [state.from ?? 0, state.to ?? length - 1];
  function restart() { clock = performance.now(); begin = state.wanted; }
  function play() {
    const [from, to] = bounds();
    if (state.wanted >= to || state.wanted < from) state.wanted = from;
    state.playing = true;
    state.dropped = 0;
    playButton.textContent = "❚❚";
    restart();
    requestAnimationFrame(tick);
  }
  function pause() { state.playing = false; playButton.textContent = "▶"; }

  async function tick(now) {
    if (!state.playing) return;
    const [from, to] = bounds();
    let frame = begin + Math.floor((now - clock) * rate() / 1000);
    if (frame > to) {
      if (state.from === null && state.to === null) { state.wanted = to; pause(); await go(); return; }
      state.wanted = frame = from;
      restart();
    }
    frame = Math.max(frame, from);
    prefetch(frame, to);
    if (frame !== state.shown) {
      if (isReady(frame)) {
        if (frame > state.shown + 1 && Number(speed.value) <= 1) state.dropped += frame - state.shown - 1;
        state.wanted = frame;
        draw(frame);
      } else {
        // Nothing is skipped because it was late: time stands still until the next frame is there.
        const next = state.shown + 1 > from && state.shown < to ? state.shown + 1 : from;
        try { await load(next, AHEAD); } catch { pause(); return; }
        state.wanted = next;
        if (!state.playing) return;
        draw(next);
        restart();
      }
    }
    dropped.textContent = state.dropped ? `${state.dropped} dropped` : "";
    requestAnimationFrame(tick);
  }
  function prefetch(frame, to) {
    const next = Math.min(to, frame + AHEAD);
    for (const view of views) if (view.images && !view.images.has(next)) {
      let first = frame;
      while (first < next && view.images.has(first)) first++;
      view.images.frame(first, AHEAD).catch(() => {});
    }
  }

  // Numbers

  let charts = null, table = [], texts = null;
  const numbers = getBytes(`${base}/columns?v=${episode.revision}`).then((buffer) => {
    const found = parseColumns(buffer);
    table = found.columns;
    charts = new Charts(plots, info, found.columns, length, seek);
    charts.show(Math.max(0, state.shown));
    showRow(Math.max(0, state.shown));
  }).catch((error) => plots.append(problem(error)));
  const words = getJson(`${base}/texts?v=${episode.revision}`).then((found) => { texts = found; showRow(Math.max(0, state.shown)); }).catch(() => {});

  const rows = new Map();
  function rowOf(key, names, size) {
    if (!rows.has(key)) {
      const cells = Array.from({ length: size }, () => element("td", { class: "number" }));
      const body = element("table", {}, ...cells.map((cell, place) => element("tr", {}, element("td", { class: "dim" }, names ? names[place] : size > 1 ? place : ""), cell)));
      side.append(element("h3", {}, key), body);
      rows.set(key, cells);
    }
    return rows.get(key);
  }
  function showRow(frame) {
    if (texts?.task?.length) rowOf("task", null, 1)[0].textContent = texts.task[frame] ?? "";
    for (const column of table) {
      const cells = rowOf(column.key, info.features[column.key]?.names, column.dims);
      for (let dim = 0; dim < column.dims; dim++) {
        const value = column.values[frame * column.dims + dim];
        cells[dim].textContent = Number.isInteger(value) ? value : value.toPrecision(5);
      }
    }
    for (const [key, values] of Object.entries(texts?.columns || {})) rowOf(key, null, 1)[0].textContent = values[frame] ?? "";
  }

  // The address carries what is shown

  const remember = later(() => {
    const query = new URLSearchParams({ f: state.shown });
    if (state.from !== null) query.set("in", state.from);
    if (state.to !== null) query.set("out", state.to);
    history.replaceState(null, "", `#/d/${id}/e/${number}?${query}`);
  }, 200);
  function drawLoop() {
    const [from, to] = bounds();
    loop.style.display = state.from === null && state.to === null ? "none" : "";
    loop.style.left = `${100 * from / Math.max(1, length - 1)}%`;
    loop.style.width = `${100 * (to - from) / Math.max(1, length - 1)}%`;
  }
  const mark = (which) => {
    state[which] = state[which] === state.wanted ? null : state.wanted;
    if (state.from !== null && state.to !== null && state.from > state.to) state[which === "from" ? "to" : "from"] = null;
    drawLoop();
    remember();
  };

  // Changes

  function drawChanges() {
    const change = draft.of(number);
    const share = (frame) => `${100 * frame / Math.max(1, length - 1)}%`;
    task.textContent = change.task ?? episode.tasks.join("; ");
    cameras.classList.toggle("deleted", Boolean(change.deleted));
    clear(cutAway);
    const gone = (from, to, title) => { const part = element("i", { title }); part.style.left = share(from); part.style.width = share(to - from); cutAway.append(part); };
    if (change.deleted) gone(0, length - 1, "deleted");
    else {
      if (change.start) gone(0, change.start, "trimmed");
      if (change.stop !== undefined) gone(change.stop - 1, length - 1, "trimmed");
      for (const frame of change.splits || []) { const line = element("b", { title: `split at ${frame}` }); line.style.left = share(frame); cutAway.append(line); }
    }
  }
  draft.listeners.add(drawChanges);
  drawChanges();
  const trim = (which, frame) => draft.change(number, { [which]: draft.of(number)[which] === frame ? null : frame });
  const split = () => {
    const splits = new Set(draft.of(number).splits || []);
    if (state.wanted > 0 && !splits.delete(state.wanted)) splits.add(state.wanted);
    draft.change(number, { splits: splits.size ? [...splits].sort((a, b) => a - b) : null });
  };
  const retask = () => {
    const text = window.prompt("The task of this episode", draft.of(number).task ?? episode.tasks[0] ?? "");
    if (text !== null) draft.change(number, { task: !text.trim() || text === (episode.tasks[0] ?? "") ? null : text });
  };
  // Head and tail apart: an idle tail teaches a policy to stop.
  const idle = async (end) => {
    const found = await getJson(`${base}/idle`);
    if (end === "start" && found.start > 0) draft.change(number, { start: found.start });
    if (end === "stop" && found.stop < length) draft.change(number, { stop: found.stop });
  };

  slider.addEventListener("input", () => { pause(); seek(Number(slider.value)); });
  slider.addEventListener("keydown", (event) => event.preventDefault());
  playButton.addEventListener("click", () => (state.playing ? pause() : play()));
  speed.addEventListener("change", restart);
  const faster = (by) => { speed.selectedIndex = Math.max(0, Math.min(SPEEDS.length - 1, speed.selectedIndex + by)); begin = state.shown; clock = performance.now(); };
  const other = (by) => async () => {
    const next = await getJson(`/api/d/${id}/episodes?from=${Math.max(0, episode.position + by)}&n=1`);
    if (episode.position + by >= 0 && next.rows.length) location.hash = `#/d/${id}/e/${next.rows[0].index}`;
  };
  const second = Math.max(1, Math.round(info.fps));
  setKeys([
    { keys: [" "], shown: "space", does: "play or pause", run: () => (state.playing ? pause() : play()) },
    { keys: ["ArrowRight"], shift: false, shown: "→", does: "one frame on", run: () => step(1) },
    { keys: ["ArrowLeft"], shift: false, shown: "←", does: "one frame back", run: () => step(-1) },
    { keys: ["ArrowRight"], shift: true, shown: "shift →", does: "one second on", run: () => step(second) },
    { keys: ["ArrowLeft"], shift: true, shown: "shift ←", does: "one second back", run: () => step(-second) },
    { keys: ["Home"], shown: "Home", does: "first frame", run: () => step(-length) },
    { keys: ["End"], shown: "End", does: "last frame", run: () => step(length) },
    { keys: ["+", "="], shown: "+", does: "faster", run: () => faster(1) },
    { keys: ["-"], shown: "-", does: "slower", run: () => faster(-1) },
    { keys: ["i"], shown: "i", does: "the loop begins here", run: () => mark("from") },
    { keys: ["o"], shown: "o", does: "the loop ends here", run: () => mark("to") },
    { keys: ["["], shown: "[", does: "the episode begins here", run: () => trim("start", state.wanted) },
    { keys: ["]"], shown: "]", does: "the episode ends here", run: () => trim("stop", state.wanted + 1) },
    { keys: ["{"], shown: "{", does: "trim what does not move at the head", run: () => idle("start") },
    { keys: ["}"], shown: "}", does: "trim what does not move at the tail", run: () => idle("stop") },
    { keys: ["s"], shown: "s", does: "split here, or not", run: split },
    { keys: ["t"], shown: "t", does: "change the task", run: retask },
    { keys: ["x", "Delete"], shown: "x", does: "delete the episode, or restore it", run: () => draft.change(number, { deleted: !draft.of(number).deleted }) },
    { keys: ["u"], shown: "u", does: "undo", run: () => draft.undo() },
    { keys: ["U"], shown: "shift u", does: "redo", run: () => draft.redo() },
    { keys: ["c"], shown: "c", does: "the changes, and what to do with them", run: () => changes.click() },
    { keys: ["n", "ArrowDown"], shown: "n ↓", does: "next episode", run: other(1) },
    { keys: ["p", "ArrowUp"], shown: "p ↑", does: "previous episode", run: other(-1) },
    { keys: ["z"], shown: "z", does: "show all of the charts' time", run: () => charts?.zoom(0, length - 1) },
    { keys: ["Escape"], shown: "Esc", does: "back to the dataset", run: () => { location.hash = `#/d/${id}`; } },
  ]);

  const take = (query) => {
    state.from = query.has("in") ? Number(query.get("in")) : null;
    state.to = query.has("out") ? Number(query.get("out")) : null;
    drawLoop();
    return seek(Number(query.get("f") || 0));
  };
  await take(asked);
  if (!views.length) draw(state.wanted);
  const leave = () => {
    pause();
    changes.leave();
    draft.listeners.delete(drawChanges);
    wish.abort();
    for (const view of views) view.images?.close();
    charts?.close();
    delete main.dataset.shown;
  };
  leave.go = take;
  // For tests and for the curious: what is shown, and the way there.
  main.demoreel = { state, seek, step, play, pause, ready: Promise.all([numbers, words]), dropped: () => state.dropped };
  return leave;
}
