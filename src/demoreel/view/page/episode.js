// One episode: its cameras in step, exact to the frame, with its numbers under the same cursor.
import { taken } from "./ahead.js";
import { Charts, parseColumns } from "./charts.js";
import { draftButton, draftOf } from "./draft.js";
import { ServerImages, arrange, openImages, shownWidth } from "./images.js";
import { Timeline, ask } from "./labels.js";
import {
  clear,
  element,
  getBytes,
  getJson,
  later,
  numberIn,
  problem,
  setKeys,
  setPath,
} from "./tools.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8];
const AHEAD = 24;

export async function showEpisode(main, id, number, asked, signal) {
  const base = `/api/d/${id}/e/${number}`;
  let before = taken(id, number);
  signal.addEventListener("abort", () => {
    if (!before) return;
    before.gone = true;
    for (const images of before.images.values()) images.close();
  });
  const [info, known, draft] = await Promise.all([
    getJson(`/api/d/${id}`, signal),
    before?.facts.catch(() => null),
    draftOf(id),
  ]);
  if (before && known?.revision !== info.revision) {
    // another state of the dataset
    for (const images of before.images.values()) images.close();
    before.gone = true;
    before = null;
  }
  const episode = before ? known : await getJson(base, signal);
  signal.throwIfAborted();
  const length = episode.length;
  setPath([["datasets", "#/"], [info.name, `#/d/${id}`], [`episode ${number}`]]);
  const facts = document.getElementById("facts");
  const task = element("span", {});
  const changes = draftButton(draft, info);
  facts.append(task, changes);

  const cameras = element("div", { class: "cameras" });
  const side = element("aside", { class: "side", "aria-label": "The row of this frame" });
  const slider = element("input", {
    type: "range",
    min: 0,
    max: length - 1,
    step: 1,
    value: 0,
    "aria-label": "Frame",
  });
  const loop = element("div", { class: "loop" });
  const cutAway = element("div", { class: "cut" });
  const status = element("output", {});
  const playButton = element("button", { title: "Play (space)", "aria-label": "Play" }, "▶");
  const speed = element(
    "select",
    { "aria-label": "Speed", title: "Speed (- and +)" },
    ...SPEEDS.map((value) => element("option", { value }, `${value}×`)),
  );
  speed.value = "1";
  const dropped = element("span", { class: "dim" });
  const transport = element(
    "div",
    { class: "transport" },
    playButton,
    element(
      "button",
      { title: "One frame back (←)", "aria-label": "One frame back", onclick: () => step(-1) },
      "◂",
    ),
    element(
      "button",
      { title: "One frame on (→)", "aria-label": "One frame on", onclick: () => step(1) },
      "▸",
    ),
    speed,
    element("div", { class: "slider" }, loop, cutAway, slider),
    status,
    dropped,
  );
  const trims = element("div", { class: "trims" });
  const lanes = element("div", { class: "lanes", "aria-label": "What is said of this episode" });
  const plots = element("div", { class: "charts" });
  main.append(
    element(
      "div",
      { class: "episode" },
      cameras,
      side,
      element("div", { class: "middle" }, transport, trims, lanes),
      plots,
    ),
  );

  // Cameras

  const state = {};
  const views = await Promise.all(
    Object.entries(episode.cameras).map(async ([camera, way]) => {
      const size = info.features[camera].size;
      const canvas = element("canvas", {
        width: size[1],
        height: size[0],
        "data-camera": camera,
        role: "img",
        "aria-label": `Camera ${camera}`,
      });
      const note = element("span", { class: "way" });
      const box = element(
        "div",
        { class: "camera", title: "Double-click to show only this camera (v)" },
        canvas,
        element("span", { class: "name" }, camera.replace("observation.images.", "")),
        note,
      );
      cameras.append(box);
      const view = {
        camera,
        canvas,
        box,
        note,
        size,
        context: canvas.getContext("2d", { alpha: false }),
        images: null,
        pointer: null,
      };
      try {
        view.images =
          before?.images.get(camera) ?? (await openImages(base, camera, way, length, size));
        note.textContent = view.images.shown;
      } catch (error) {
        box.append(problem(error));
      }
      box.addEventListener("dblclick", () => focusOn(state.only === camera ? null : camera));
      canvas.addEventListener("mousemove", (event) => {
        const area = canvas.getBoundingClientRect(),
          scale = Math.min(area.width / size[1], area.height / size[0]);
        view.pointer = [
          (event.clientX - area.left - (area.width - size[1] * scale) / 2) / (size[1] * scale),
          (event.clientY - area.top - (area.height - size[0] * scale) / 2) / (size[0] * scale),
        ];
        measure(view);
      });
      canvas.addEventListener("mouseleave", () => {
        view.pointer = null;
        measure(view);
      });
      return view;
    }),
  );
  if (before) before.gone = true; // what was not ready yet is closed when it is
  // Metres under the mouse pointer, of the frame that is shown.
  function measure(view) {
    if (!view.images?.isDepth) return;
    const [x, y] = view.pointer ?? [-1, -1];
    const isInside = x >= 0 && x < 1 && y >= 0 && y < 1;
    const metres = isInside ? view.images.metres(state.shown, x, y) : null;
    view.note.textContent = metres === null ? view.images.shown : `${metres.toFixed(3)} m`;
  }
  // One camera large, or all of them.
  function focusOn(camera) {
    state.only = views.some((view) => view.camera === camera) ? camera : null;
    for (const view of views) view.box.hidden = Boolean(state.only) && view.camera !== state.only;
    layOut();
    remember();
  }
  function layOut() {
    const visible = views.filter((view) => !view.box.hidden);
    arrange(
      cameras,
      visible.map((view) => view.size),
    );
    let other = false;
    for (const { images, canvas, size } of visible)
      if (images?.fit?.(shownWidth(canvas, size))) other = true;
    if (other && state.shown >= 0 && !state.playing) {
      state.stale = true;
      go();
    }
  }
  const resized = new ResizeObserver(layOut);
  resized.observe(cameras);

  // Where the browser fails to decode, the server does.
  function fallBack(view, error) {
    if (!(view.images instanceof ServerImages)) {
      view.images.close();
      view.images = new ServerImages(
        base,
        view.camera,
        { way: "frames", revision: episode.revision },
        length,
        view.size,
      );
      view.images.fit(shownWidth(view.canvas, view.size));
      view.note.textContent = view.images.shown;
      view.note.title = String(error.message || error);
      return true;
    }
    clear(
      view.box.querySelector(".error") || view.box.appendChild(element("div", { class: "error" })),
    );
    view.box.querySelector(".error").append(problem(error));
    view.images.close();
    view.images = null;
    return false;
  }

  // The frame that is shown

  Object.assign(state, {
    wanted: 0,
    shown: -1,
    playing: false,
    from: null,
    to: null,
    dropped: 0,
    stale: false, // the frame is shown at another size than before
    only: null,
  });
  const wish = new AbortController();
  signal.addEventListener("abort", () => wish.abort());
  let busy = false;

  function draw(frame) {
    for (const view of views) {
      if (!view.images) continue;
      const image = view.images.look(frame);
      if (!image) continue;
      const { displayWidth = image.width, displayHeight = image.height } = image;
      if (view.canvas.width !== displayWidth || view.canvas.height !== displayHeight)
        Object.assign(view.canvas, { width: displayWidth, height: displayHeight });
      view.context.drawImage(image, 0, 0, displayWidth, displayHeight);
      view.canvas.dataset.frame = frame;
    }
    state.shown = frame;
    main.dataset.shown = frame;
    telling ||= requestAnimationFrame(tell);
  }

  // What stands beside the images, once for each image of the screen: it is there with them.
  let telling = 0;
  function tell() {
    telling = 0;
    if (state.gone) return;
    const frame = state.shown;
    slider.value = frame;
    status.textContent = `frame ${frame} / ${length}   ${(frame / info.fps).toFixed(3)} s`;
    charts?.show(frame);
    timeline.show(frame);
    for (const view of views) measure(view);
    showRow(frame);
    remember();
  }

  const isReady = (frame) => views.every((view) => !view.images || view.images.has(frame));

  async function load(frame, ahead, signal) {
    await Promise.all(
      views.map(async (view) => {
        while (view.images) {
          try {
            await view.images.frame(frame, ahead, signal);
            return;
          } catch (error) {
            if (error.name === "AbortError") throw error;
            if (!fallBack(view, error)) return;
          }
        }
      }),
    );
  }

  // Shows the frame that was wished last; those in between are left out while one is decoded.
  async function go() {
    if (busy) return;
    busy = true;
    try {
      while (state.shown !== state.wanted || state.stale) {
        const frame = state.wanted;
        state.stale = false;
        try {
          await load(frame, 0, wish.signal);
        } catch (error) {
          if (wish.signal.aborted) return; // the page is left
          if (error.name !== "AbortError") throw error;
          continue; // another way to decode was taken
        }
        draw(frame);
      }
    } finally {
      busy = false;
    }
  }

  function seek(frame) {
    state.wanted = Math.max(0, Math.min(length - 1, frame));
    if (state.playing) restart();
    return go();
  }
  const step = (by) => {
    pause();
    return seek(state.wanted + by);
  };

  // Playing: the clock runs on while all cameras have their frame, and waits where one has not.

  let clock = 0,
    begin = 0;
  const rate = () => info.fps * Number(speed.value);
  const bounds = () => [state.from ?? 0, state.to ?? length - 1];
  function restart() {
    clock = performance.now();
    begin = state.wanted;
  }
  function play() {
    const [from, to] = bounds();
    if (state.wanted >= to || state.wanted < from) state.wanted = from;
    state.playing = true;
    state.dropped = 0;
    playButton.textContent = "❚❚";
    restart();
    requestAnimationFrame(tick);
  }
  function pause() {
    state.playing = false;
    playButton.textContent = "▶";
  }

  async function tick(now) {
    if (!state.playing) return;
    const [from, to] = bounds();
    let frame = begin + Math.floor((Math.max(0, now - clock) * rate()) / 1000); // a frame of the screen may have begun before the clock
    if (frame > to) {
      if (state.from === null && state.to === null) {
        state.wanted = to;
        pause();
        await go();
        return;
      }
      state.wanted = frame = from;
      restart();
    }
    frame = Math.max(frame, from);
    prefetch(frame, to);
    if (frame !== state.shown) {
      if (isReady(frame)) {
        if (frame > state.shown + 1 && Number(speed.value) <= 1)
          state.dropped += frame - state.shown - 1;
        state.wanted = frame;
        draw(frame);
      } else {
        // Nothing is skipped because it was late: time stands still until the next frame is there.
        const next = state.shown + 1 > from && state.shown < to ? state.shown + 1 : from;
        try {
          await load(next, AHEAD);
        } catch {
          pause();
          return;
        }
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
    for (const view of views)
      if (view.images && !view.images.has(next)) {
        let first = frame;
        while (first < next && view.images.has(first)) first++;
        view.images.frame(first, AHEAD).catch(() => {});
      }
  }

  // Numbers

  let charts = null,
    table = [],
    texts = null;
  const unread = (error) => {
    const said = problem(error);
    // What both requests meet, such as a damaged table, is said once.
    const known = [...plots.querySelectorAll(".error")].map((each) => each.textContent);
    if (!known.includes(said.textContent)) plots.append(said);
  };
  const numbers = getBytes(`${base}/columns?v=${episode.revision}`)
    .then((buffer) => {
      const found = parseColumns(buffer);
      table = found.columns;
      charts = new Charts(plots, info, found.columns, length, seek, {
        hidden: asked.getAll("hide"),
        changed: () => remember(),
      });
      const zoom = (asked.get("zoom") ?? "").match(/^(\d+)-(\d+)$/);
      if (zoom) charts.zoom(Number(zoom[1]), Number(zoom[2]));
      charts.show(Math.max(0, state.shown));
      for (const column of table) {
        if (info.features[column.key]?.dtype !== "bool") continue;
        for (let dim = 0; dim < column.dims; dim++) {
          const values = Array.from({ length }, (_, frame) =>
            Boolean(column.values[frame * column.dims + dim]),
          );
          timeline.addColumn(column.dims > 1 ? `${column.key}[${dim}]` : column.key, values, {
            truth: true,
          });
        }
      }
      timeline.draw();
      showRow(Math.max(0, state.shown));
    })
    .catch(unread);
  const words = getJson(`${base}/texts?v=${episode.revision}`)
    .then((found) => {
      texts = found;
      showRow(Math.max(0, state.shown));
      if (new Set(found.task).size > 1) timeline.addColumn("task", found.task);
      for (const [key, values] of Object.entries(found.columns))
        if (info.features[key].dtype === "string") timeline.addColumn(key, values);
      timeline.draw();
    })
    .catch(unread);

  const rows = new Map();
  const spoken = element("div"),
    single = element("div", { class: "single" }),
    counted = element("div"); // texts first, whatever arrives first
  side.append(spoken, single, counted);
  function rowOf(key, names, size) {
    if (!rows.has(key)) {
      const isNumber = Boolean(names) || info.features[key]?.kind === "number";
      const cells = Array.from({ length: size }, () =>
        element("td", isNumber ? { class: "number" } : {}),
      );
      const isAlone = size === 1 && !names;
      const body = element(
        "table",
        {},
        ...cells.map((cell, place) =>
          element(
            "tr",
            {},
            isAlone && !isNumber
              ? null
              : element("td", { class: "dim" }, isAlone ? key : names ? names[place] : place),
            cell,
          ),
        ),
      );
      (isNumber ? (isAlone ? single : counted) : spoken).append(
        ...(isAlone && isNumber ? [] : [element("h3", {}, key)]),
        body,
      );
      rows.set(key, cells);
    }
    return rows.get(key);
  }
  const put = (cell, text) => {
    if (cell.shown !== text) cell.textContent = cell.shown = text;
  };
  function showRow(frame) {
    if (texts?.task?.length) put(rowOf("task", null, 1)[0], texts.task[frame] ?? "");
    for (const column of table) {
      const cells = rowOf(column.key, info.features[column.key]?.names, column.dims);
      for (let dim = 0; dim < column.dims; dim++) {
        const value = column.values[frame * column.dims + dim];
        put(cells[dim], String(Number.isInteger(value) ? value : value.toPrecision(5)));
      }
    }
    for (const [key, values] of Object.entries(texts?.columns || {}))
      put(rowOf(key, null, 1)[0], String(values[frame] ?? ""));
  }

  // The address carries what is shown

  const remember = later(() => {
    if (state.gone) return;
    const query = new URLSearchParams({ f: state.shown });
    if (state.from !== null) query.set("in", state.from);
    if (state.to !== null) query.set("out", state.to);
    if (state.only) query.set("camera", state.only);
    if (speed.value !== "1") query.set("speed", speed.value);
    if (charts && (charts.range[0] > 0 || charts.range[1] < length - 1))
      query.set("zoom", charts.range.map(Math.round).join("-"));
    for (const name of charts ? charts.hidden : asked.getAll("hide")) query.append("hide", name);
    history.replaceState(null, "", `#/d/${id}/e/${number}?${query}`);
  }, 200);
  function drawLoop() {
    const [from, to] = bounds();
    loop.style.display = state.from === null && state.to === null ? "none" : "";
    loop.style.left = `${(100 * from) / Math.max(1, length - 1)}%`;
    loop.style.width = `${(100 * (to - from)) / Math.max(1, length - 1)}%`;
  }
  const mark = (which) => {
    state[which] = state[which] === state.wanted ? null : state.wanted;
    if (state.from !== null && state.to !== null && state.from > state.to)
      state[which === "from" ? "to" : "from"] = null;
    drawLoop();
    remember();
  };

  // Changes

  const said = { success: null, score: null, flag: null, persistent: [], events: [] }; // by the dataset
  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
  const now = (name) => draft.of(number)[name] ?? said[name] ?? null;
  const label = (name, value) => {
    const wanted = now(name) === value ? null : value;
    // What the dataset says itself is no change; to take that back, it would have to be unknown.
    draft.change(number, {
      [name]:
        same(wanted, said[name] ?? null) ||
        (wanted === null && draft.of(number)[name] === undefined)
          ? null
          : wanted,
    });
  };
  const timeline = new Timeline(lanes, length, {
    read: (name) => now(name) ?? [],
    write: (name, rows) =>
      draft.change(number, { [name]: same(rows, said[name] ?? []) ? null : rows }),
    seek: (frame) => {
      pause();
      return seek(frame);
    },
    cameras: Object.keys(episode.cameras),
    known: (style) =>
      [
        ...said.persistent,
        ...said.events,
        ...Object.values(draft.episodes).flatMap((change) => [
          ...(change.persistent ?? []),
          ...(change.events ?? []),
        ]),
      ]
        .filter((row) => row.style === style || style === "event")
        .map((row) => row.content ?? ""),
  });
  const labels = getJson(`${base}/labels?v=${episode.revision}`)
    .then((found) => {
      Object.assign(said, found);
      drawChanges();
    })
    .catch((error) => lanes.append(problem(error)));
  const marks = element("span", { class: "marks" });
  facts.append(marks);
  const toggles = [
    ["success", true, "✓ success", "s"],
    ["success", false, "✗ failure", "f"],
    ["flag", "good", "good", "g"],
    ["flag", "bad", "bad", "b"],
    ["redo", true, "record again", "r"],
  ];
  for (const [name, value, text, key] of toggles) {
    marks.append(
      element(
        "button",
        {
          "data-mark": `${name} ${value}`,
          title: `${text} (${key})`,
          onclick: () => mark2(name, value),
        },
        text,
      ),
    );
  }
  const stars = element("span", { class: "stars", role: "group", "aria-label": "Score" });
  for (let score = 1; score <= 5; score++)
    stars.append(
      element(
        "button",
        {
          "data-score": score,
          title: `Score ${score} (${score})`,
          "aria-label": `Score ${score}`,
          onclick: () => label("score", score),
        },
        "★",
      ),
    );
  marks.append(stars);
  const mark2 = (name, value) =>
    name === "redo" ? draft.change(number, { redo: !draft.of(number).redo }) : label(name, value);

  function drawChanges() {
    const change = draft.of(number);
    for (const [name, value] of toggles) {
      const on = (name === "redo" ? Boolean(change.redo) : now(name)) === value;
      marks
        .querySelector(`[data-mark="${name} ${value}"]`)
        .setAttribute("aria-pressed", String(on));
    }
    for (const star of stars.children) {
      const on = Number(star.dataset.score) <= (now("score") ?? 0);
      star.classList.toggle("on", on);
      star.setAttribute("aria-pressed", String(now("score") === Number(star.dataset.score)));
    }
    timeline.draw();
    drawTrims();
    const share = (frame) => `${(100 * frame) / Math.max(1, length - 1)}%`;
    task.textContent = task.title = change.task ?? episode.tasks.join("; ");
    cameras.classList.toggle("deleted", Boolean(change.deleted));
    clear(cutAway);
    const gone = (from, to, title) => {
      const part = element("i", { title });
      part.style.left = share(from);
      part.style.width = share(to - from);
      cutAway.append(part);
    };
    if (change.deleted) gone(0, length - 1, "deleted");
    else {
      if (change.start) gone(0, change.start, "trimmed");
      if (change.stop !== undefined) gone(change.stop - 1, length - 1, "trimmed");
      for (const frame of change.splits || []) {
        const line = element("b", { title: `split at ${frame}` });
        line.style.left = share(frame);
        cutAway.append(line);
      }
    }
  }
  draft.listeners.add(drawChanges);
  const trim = (which, frame) =>
    draft.change(number, { [which]: draft.of(number)[which] === frame ? null : frame });
  const split = () => {
    const splits = new Set(draft.of(number).splits || []);
    if (state.wanted > 0 && !splits.delete(state.wanted)) splits.add(state.wanted);
    draft.change(number, { splits: splits.size ? [...splits].sort((a, b) => a - b) : null });
  };
  const retask = async () => {
    const own = episode.tasks[0] ?? "";
    const found = await ask("The task of this episode", draft.of(number).task ?? own, {
      known: Object.values(draft.episodes).map((change) => change.task ?? own),
    });
    if (found)
      draft.change(number, { task: !found.text || found.text === own ? null : found.text });
  };
  // Head and tail apart: an idle tail teaches a policy to stop.
  let proposed = null;
  const proposal = getJson(`${base}/idle?v=${episode.revision}`)
    .then((found) => {
      proposed = found;
      drawTrims();
    })
    .catch(() => {});
  const idle = async (end) => {
    await proposal;
    if (end === "start" && proposed?.start > 0) trim("start", proposed.start);
    if (end === "stop" && proposed?.stop < length) trim("stop", proposed.stop);
  };
  function drawTrims() {
    clear(trims);
    const change = draft.of(number);
    const part = (end, frames, text, key) => {
      if (!frames && change[end] === undefined) return;
      const on = change[end] !== undefined;
      const gone = on ? (end === "start" ? change.start : length - change.stop) : frames;
      trims.append(
        element(
          "button",
          {
            "data-trim": end,
            "aria-pressed": String(on),
            title: on ? "Undo this trim" : `Trim it (${key})`,
            onclick: () => (on ? draft.change(number, { [end]: null }) : idle(end)),
          },
          `${on ? "trimmed" : "trim"} ${text} ${(gone / info.fps).toFixed(1)} s${on ? "" : " (idle)"}`,
        ),
      );
    };
    part("start", proposed?.start ?? 0, "head", "{");
    part("stop", proposed ? length - proposed.stop : 0, "tail", "}");
    for (const frame of change.splits || [])
      trims.append(element("span", { class: "dim" }, `split at ${frame}`));
  }

  drawChanges();

  slider.addEventListener("input", () => {
    pause();
    seek(Number(slider.value));
  });
  slider.addEventListener("keydown", (event) => event.preventDefault());
  playButton.addEventListener("click", () => (state.playing ? pause() : play()));
  speed.addEventListener("change", () => {
    restart();
    remember();
    speed.blur();
  });
  const faster = (by) => {
    remember();
    speed.selectedIndex = Math.max(0, Math.min(SPEEDS.length - 1, speed.selectedIndex + by));
    begin = state.shown;
    clock = performance.now();
  };
  const other = (by) => async () => {
    const next = await getJson(
      `/api/d/${id}/episodes?from=${Math.max(0, episode.position + by)}&n=1`,
    );
    if (episode.position + by >= 0 && next.rows.length)
      location.hash = `#/d/${id}/e/${next.rows[0].index}`;
  };
  const second = Math.max(1, Math.round(info.fps));
  setKeys([
    {
      keys: [" "],
      shown: "space",
      does: "play or pause",
      run: () => (state.playing ? pause() : play()),
    },
    { keys: ["ArrowRight"], shift: false, shown: "→", does: "one frame on", run: () => step(1) },
    { keys: ["ArrowLeft"], shift: false, shown: "←", does: "one frame back", run: () => step(-1) },
    {
      keys: ["ArrowRight"],
      shift: true,
      shown: "shift →",
      does: "one second on",
      run: () => step(second),
    },
    {
      keys: ["ArrowLeft"],
      shift: true,
      shown: "shift ←",
      does: "one second back",
      run: () => step(-second),
    },
    { keys: ["Home"], shown: "Home", does: "first frame", run: () => step(-length) },
    { keys: ["End"], shown: "End", does: "last frame", run: () => step(length) },
    { keys: ["+", "="], shown: "+", does: "faster", run: () => faster(1) },
    { keys: ["-"], shown: "-", does: "slower", run: () => faster(-1) },
    { keys: ["i"], shown: "i", does: "the loop begins here", run: () => mark("from") },
    { keys: ["o"], shown: "o", does: "the loop ends here", run: () => mark("to") },
    {
      keys: ["["],
      shown: "[",
      does: "the episode begins here",
      run: () => trim("start", state.wanted),
    },
    {
      keys: ["]"],
      shown: "]",
      does: "the episode ends here",
      run: () => trim("stop", state.wanted + 1),
    },
    {
      keys: ["{"],
      shown: "{",
      does: "trim what does not move at the head",
      run: () => idle("start"),
    },
    {
      keys: ["}"],
      shown: "}",
      does: "trim what does not move at the tail",
      run: () => idle("stop"),
    },
    { keys: ["k"], shown: "k", does: "split here, or not", run: split },
    { keys: ["s"], shown: "s", does: "success, or unknown", run: () => label("success", true) },
    { keys: ["f"], shown: "f", does: "failure, or unknown", run: () => label("success", false) },
    {
      keys: ["1", "2", "3", "4", "5"],
      shown: "1-5",
      does: "score, or none",
      run: (event) => label("score", Number(event.key)),
    },
    { keys: ["g"], shown: "g", does: "good, or no flag", run: () => label("flag", "good") },
    { keys: ["b"], shown: "b", does: "bad, or no flag", run: () => label("flag", "bad") },
    {
      keys: ["r"],
      shown: "r",
      does: "record this episode again, or not",
      run: () => mark2("redo", true),
    },
    {
      keys: ["a"],
      shown: "a",
      does: "a subtask begins here",
      run: () => timeline.addFrom(state.wanted),
    },
    {
      keys: ["e"],
      shown: "e",
      does: "something is said here",
      run: () => timeline.say(state.wanted),
    },
    {
      keys: ["v"],
      shown: "v",
      does: "one camera after the other, then all",
      run: () =>
        focusOn(
          [null, ...views.map((view) => view.camera)][
            (1 + views.findIndex((view) => view.camera === state.only) + 1) % (views.length + 1)
          ],
        ),
    },
    { keys: ["t"], shown: "t", does: "change the task", run: retask },
    {
      keys: ["x", "Delete"],
      shown: "x",
      does: "delete the episode, or restore it",
      run: () => draft.change(number, { deleted: !draft.of(number).deleted }),
    },
    { keys: ["u"], shown: "u", does: "undo", run: () => draft.undo() },
    { keys: ["U"], shown: "shift u", does: "redo", run: () => draft.redo() },
    {
      keys: ["c"],
      shown: "c",
      does: "the changes, and what to do with them",
      run: () => changes.click(),
    },
    { keys: ["n", "ArrowDown"], shown: "n ↓", does: "next episode", run: other(1) },
    { keys: ["p", "ArrowUp"], shown: "p ↑", does: "previous episode", run: other(-1) },
    {
      keys: ["z"],
      shown: "z",
      does: "show all of the charts' time",
      run: () => charts?.zoom(0, length - 1),
    },
    {
      keys: ["Z"],
      shown: "shift z",
      does: "show the loop's time in the charts",
      run: () => charts?.zoom(...bounds()),
    },
    {
      keys: ["Escape"],
      shown: "Esc",
      does: "back to the dataset",
      run: () => {
        location.hash = `#/d/${id}`;
      },
    },
  ]);

  const take = (query) => {
    state.from = numberIn(query, "in", 0, length - 1);
    state.to = numberIn(query, "out", 0, length - 1);
    if (state.from !== null && state.to !== null && state.from > state.to) state.from = null;
    if (SPEEDS.includes(Number(query.get("speed")))) speed.value = query.get("speed");
    focusOn(query.get("camera"));
    drawLoop();
    return seek(numberIn(query, "f", 0, length - 1) ?? 0);
  };
  await take(asked);
  if (!views.length) draw(state.wanted);
  const leave = () => {
    pause();
    state.gone = true;
    changes.leave();
    draft.listeners.delete(drawChanges);
    wish.abort();
    for (const view of views) view.images?.close();
    charts?.close();
    resized.disconnect();
    delete main.dataset.shown;
  };
  leave.go = take;
  // For tests and for the curious: what is shown, and the way there.
  main.demoreel = {
    state,
    seek,
    step,
    play,
    pause,
    ready: Promise.all([numbers, words, labels, proposal]),
    dropped: () => state.dropped,
  };
  return leave;
}
