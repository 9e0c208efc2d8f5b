// Episodes beside each other: their cameras in sync, by time or by share, and their curves over each
// other, with predictions from other datasets or from files.
import { parseColumns } from "./charts.js";
import { arrange, openImages, shownWidth } from "./images.js";
import {
  clear,
  count,
  element,
  get,
  getBytes,
  getJson,
  problem,
  scale,
  setKeys,
  setPath,
} from "./tools.js";

// Okabe and Ito's colours: told apart with any colour vision. Dashes tell predictions apart.
const COLOURS = [
  "#56b4e9",
  "#e69f00",
  "#009e73",
  "#cc79a7",
  "#d55e00",
  "#b5a800",
  "#0072b2",
  "#8c8c8c",
];
const MANY = 200,
  POINTS = 1200,
  FEW_POINTS = 300,
  HIGH = 110;

export async function showCompare(main, asked, signal) {
  const chosen = asked
    .getAll("e")
    .slice(0, MANY)
    .map((text) => text.split(":"));
  if (!chosen.length) throw new Error("Mark episodes with m on a dataset's page, then press v.");
  const infos = new Map(
    await Promise.all(
      [...new Set(chosen.map(([id]) => id))].map(async (id) => [
        id,
        await getJson(`/api/d/${id}`, signal),
      ]),
    ),
  );
  const episodes = chosen.map(([id, number], place) => ({
    id,
    number: Number(number),
    info: infos.get(id),
    base: `/api/d/${id}/e/${Number(number)}`,
    colour: COLOURS[place % COLOURS.length],
    name: `${infos.size > 1 ? `${infos.get(id).name} ` : ""}episode ${Number(number)}`,
    shown: true,
  }));
  const state = {
    by: asked.get("by") === "share" ? "share" : "time",
    key: asked.get("key") || "",
    at: 0,
    playing: false,
    files: [],
    file: asked.get("file"),
  };
  setPath([
    ["datasets", "#/"],
    ...(infos.size === 1 ? [[episodes[0].info.name, `#/d/${episodes[0].id}`]] : []),
    [`compare ${count(episodes.length, "episode")}`],
  ]);
  const first = episodes[0].info;
  const keys = Object.entries(first.features)
    .filter(
      ([key, feature]) =>
        feature.kind === "number" &&
        !["timestamp", "frame_index", "episode_index", "index", "task_index"].includes(key),
    )
    .map(([key]) => key);
  if (!keys.includes(state.key)) state.key = keys.includes("action") ? "action" : keys[0];

  const by = element("button", {
    title: "In step by time, or by share of the episode (a)",
    onclick: () => {
      state.by = state.by === "time" ? "share" : "time";
      sync();
    },
  });
  const feature = element(
    "select",
    { "aria-label": "Feature" },
    ...keys.map((key) => element("option", {}, key)),
  );
  feature.value = state.key;
  const files = element("select", { "aria-label": "Predictions over the recorded values" });
  const upload = element("input", {
    type: "file",
    accept: ".parquet,.npz",
    "aria-label": "A file of predictions",
  });
  const playButton = element("button", { "aria-label": "Play", onclick: () => play() }, "▶");
  const slider = element("input", {
    type: "range",
    min: 0,
    max: 1000,
    step: 1,
    value: 0,
    "aria-label": "Place",
  });
  const at = element("output", {});
  const wrong = element("span", { class: "problem", role: "alert" });
  const views = element("div", { class: "views" });
  const legend = element("div", { class: "names" });
  const curves = element("div", { class: "curves" });
  main.append(
    element(
      "div",
      { class: "tools" },
      by,
      feature,
      files,
      element("label", { class: "dim" }, "or a file ", upload),
      wrong,
    ),
    views,
    element("div", { class: "transport" }, playButton, slider, at),
    legend,
    curves,
  );

  // Cameras of the first two

  const pair = episodes.length <= 2 ? episodes : [];
  const boxes = pair.map((episode) =>
    element("div", {
      class: "side-of",
      "data-episode": episode.number,
      "data-dataset": episode.id,
    }),
  );
  views.append(...boxes);
  const arranged = new Map();
  const resized = new ResizeObserver((changes) => {
    for (const { target } of changes)
      if (arranged.has(target)) arrange(target, arranged.get(target));
      else draw();
  });
  signal.addEventListener("abort", () => resized.disconnect());
  const shownCameras = await Promise.all(
    pair.map(async (episode, place) => {
      episode.facts = await getJson(episode.base, signal);
      const box = boxes[place];
      const title = element(
        "div",
        { class: "of" },
        mark(episode),
        episode.name,
        element("span", { class: "dim" }, ` ${episode.facts.tasks.join("; ")}`),
      );
      const grid = element("div", { class: "cameras" });
      box.append(title, grid);
      const cells = new Map(
        Object.keys(episode.facts.cameras).map((camera) => [
          camera,
          element("div", { class: "camera" }),
        ]),
      );
      grid.append(...cells.values());
      const cameras = await Promise.all(
        Object.entries(episode.facts.cameras).map(async ([camera, way]) => {
          const size = episode.info.features[camera].size;
          const canvas = element("canvas", {
            width: size[1],
            height: size[0],
            "data-camera": camera,
            role: "img",
            "aria-label": `Camera ${camera} of ${episode.name}`,
          });
          const cell = cells.get(camera);
          cell.append(
            canvas,
            element("span", { class: "name" }, camera.replace("observation.images.", "")),
          );
          try {
            return {
              canvas,
              size,
              context: canvas.getContext("2d", { alpha: false }),
              images: await openImages(episode.base, camera, way, episode.facts.length, size),
            };
          } catch (error) {
            cell.append(problem(error));
            return null;
          }
        }),
      );
      const sizes = Object.keys(episode.facts.cameras).map(
        (camera) => episode.info.features[camera].size,
      );
      arranged.set(grid, sizes);
      arrange(grid, sizes);
      resized.observe(grid);
      return { episode, box, cameras: cameras.filter(Boolean) };
    }),
  );
  views.hidden = !pair.length;

  function mark(episode) {
    const dot = element("i", { class: "dot" });
    dot.style.background = episode.colour;
    return dot;
  }

  // Curves

  async function load() {
    wrong.textContent = "";
    const points = episodes.length > 4 ? FEW_POINTS : POINTS;
    await Promise.all(
      episodes.map(async (episode) => {
        try {
          const found = parseColumns(
            await getBytes(
              `${episode.base}/columns?keys=${encodeURIComponent(state.key)}&points=${points}&v=${episode.info.revision}`,
            ),
          );
          Object.assign(episode, {
            length: found.of,
            frames: found.frames || Array.from({ length: found.length }, (_, place) => place),
            column: found.columns[0],
            predicted: null,
          });
        } catch (error) {
          episode.column = null;
          wrong.textContent = `${episode.name}: ${error.message}`;
        }
      }),
    );
    await loadPredicted();
    drawLegend();
    build();
    sync();
    main.dataset.compared = episodes.filter((episode) => episode.column).length;
  }
  async function loadPredicted() {
    for (const episode of episodes) episode.predicted = null;
    if (state.file === null || state.file === "") return;
    await Promise.all(
      episodes.map(async (episode) => {
        try {
          const found = parseColumns(await getBytes(`${episode.base}/predictions/${state.file}`));
          episode.predicted =
            found.columns.find((column) => column.key === state.key) || found.columns[0];
        } catch (error) {
          wrong.textContent = error.message;
        }
      }),
    );
  }
  function drawLegend() {
    clear(legend);
    for (const episode of episodes) {
      const button = element(
        "button",
        {
          "aria-pressed": String(episode.shown),
          title: "Hide or show",
          onclick: () => {
            episode.shown = !episode.shown;
            drawLegend();
            draw();
          },
        },
        mark(episode),
        episode.name,
      );
      legend.append(button);
    }
    if (state.file)
      legend.append(element("span", { class: "dim" }, "dashed: predicted"), errorText());
  }
  function errorText() {
    let sum = 0,
      many = 0;
    for (const episode of episodes)
      if (episode.column && episode.predicted) {
        const { dims } = episode.column;
        episode.frames.forEach((frame, place) => {
          for (let dim = 0; dim < Math.min(dims, episode.predicted.dims); dim++) {
            const miss =
              episode.predicted.values[frame * episode.predicted.dims + dim] -
              episode.column.values[place * dims + dim];
            if (Number.isFinite(miss)) {
              sum += Math.abs(miss);
              many += 1;
            }
          }
        });
      }
    return element(
      "span",
      { class: "dim", "data-error": many ? sum / many : "" },
      many ? ` mean absolute difference ${(sum / many).toPrecision(4)}` : "",
    );
  }

  let plots = [];
  function build() {
    clear(curves);
    const most = Math.max(0, ...episodes.map((episode) => episode.column?.dims || 0));
    const names = first.features[state.key]?.names;
    plots = Array.from({ length: Math.min(most, 64) }, (_, dim) => {
      const canvas = element("canvas", {
        role: "img",
        "aria-label": `${names ? names[dim] : `${state.key}[${dim}]`} of all episodes`,
      });
      const now = element("i", { class: "now" });
      const box = element(
        "div",
        { class: "curve" },
        element("div", { class: "title" }, names ? names[dim] : `${state.key}[${dim}]`),
        canvas,
        now,
      );
      canvas.addEventListener("click", (event) => {
        state.at = event.offsetX / canvas.clientWidth;
        sync();
      });
      curves.append(box);
      return { dim, canvas, now };
    });
    draw();
  }
  const seconds = () =>
    Math.max(
      1e-9,
      ...episodes.filter((each) => each.length).map((each) => (each.length - 1) / each.info.fps),
    );
  // Where a frame of an episode lies, from 0 to 1.
  const share = (episode, frame) =>
    state.by === "share"
      ? frame / Math.max(1, episode.length - 1)
      : frame / episode.info.fps / seconds();
  const frameAt = (episode) =>
    state.by === "share"
      ? Math.round(state.at * (episode.length - 1))
      : Math.round(state.at * seconds() * episode.info.fps);

  function draw() {
    const style = getComputedStyle(document.documentElement),
      ratio = window.devicePixelRatio || 1;
    for (const { dim, canvas } of plots) {
      const size = scale(),
        width = canvas.clientWidth / size,
        context = canvas.getContext("2d");
      Object.assign(canvas, { width: width * size * ratio, height: HIGH * size * ratio });
      context.scale(ratio * size, ratio * size);
      let low = Infinity,
        high = -Infinity;
      const spans = (column, places, at) =>
        places.forEach((_, place) => {
          const value = column.values[at(place) * column.dims + dim];
          if (value < low) low = value;
          if (value > high) high = value;
        });
      const usable = episodes.filter((each) => each.shown && each.column && dim < each.column.dims);
      for (const episode of usable) {
        spans(episode.column, episode.frames, (place) => place);
        if (episode.predicted && dim < episode.predicted.dims)
          spans(episode.predicted, episode.frames, (place) => episode.frames[place]);
      }
      if (!(high > low)) {
        high = low + 1;
        low -= 1;
      }
      const y = (value) => 14 + (1 - (value - low) / (high - low)) * (HIGH - 20);
      const line = (episode, column, at, dashed) => {
        context.beginPath();
        context.strokeStyle = episode.colour;
        context.globalAlpha = episodes.length > 8 ? 0.45 : 1;
        context.lineWidth = dashed ? 1.6 : 1.2;
        context.setLineDash(dashed ? [5, 4] : []);
        let on = false;
        episode.frames.forEach((frame, place) => {
          const value = column.values[at(place) * column.dims + dim];
          if (!Number.isFinite(value)) {
            on = false;
            return;
          }
          const x = share(episode, frame) * width;
          if (on) context.lineTo(x, y(value));
          else context.moveTo(x, y(value));
          on = true;
        });
        context.stroke();
      };
      for (const episode of usable) {
        line(episode, episode.column, (place) => place, false);
        if (episode.predicted && dim < episode.predicted.dims)
          line(episode, episode.predicted, (place) => episode.frames[place], true);
      }
      Object.assign(context, {
        globalAlpha: 1,
        fillStyle: style.getPropertyValue("--dim"),
        font: "10px system-ui",
        textAlign: "right",
      });
      context.fillText(high.toPrecision(3), width - 4, 12);
      context.fillText(low.toPrecision(3), width - 4, HIGH - 3);
    }
  }

  // The place

  let busy = false,
    again = false;
  async function sync() {
    by.textContent = state.by === "time" ? "by time" : "by share of the episode";
    slider.value = Math.round(state.at * 1000);
    at.textContent =
      state.by === "time"
        ? `${(state.at * seconds()).toFixed(2)} s`
        : `${(state.at * 100).toFixed(1)} %`;
    for (const plot of plots) plot.now.style.left = `${state.at * 100}%`;
    remember();
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    do {
      again = false;
      await Promise.all(
        shownCameras.map(async ({ episode, box, cameras }) => {
          if (!episode.length) return;
          const wanted = frameAt(episode),
            frame = Math.max(0, Math.min(episode.length - 1, wanted));
          box.classList.toggle("over", wanted > episode.length - 1); // this one has ended
          await Promise.all(
            cameras.map(async (view) => {
              try {
                view.images.fit?.(shownWidth(view.canvas, view.size));
                const image = await view.images.frame(frame, state.playing ? 12 : 0);
                const width = image.displayWidth ?? image.width,
                  height = image.displayHeight ?? image.height;
                if (view.canvas.width !== width || view.canvas.height !== height)
                  Object.assign(view.canvas, { width, height });
                view.context.drawImage(image, 0, 0, width, height);
                view.canvas.dataset.frame = frame;
              } catch (error) {
                wrong.textContent = error.message;
              }
            }),
          );
          box.dataset.frame = frame;
        }),
      );
    } while (again);
    busy = false;
  }
  function remember() {
    const query = new URLSearchParams(chosen.map((each) => ["e", each.join(":")]));
    query.set("by", state.by);
    query.set("key", state.key);
    if (state.file) query.set("file", state.file);
    history.replaceState(null, "", `#/compare?${query}`);
  }
  let before = 0;
  function play() {
    state.playing = !state.playing;
    playButton.textContent = state.playing ? "❚❚" : "▶";
    if (state.playing) {
      if (state.at >= 1) state.at = 0;
      before = performance.now();
      requestAnimationFrame(tick);
    }
  }
  function tick(now) {
    if (!state.playing) return;
    if (!busy) {
      state.at = Math.min(1, state.at + (now - before) / 1000 / seconds());
      before = now;
      sync();
      if (state.at >= 1) {
        play();
        return;
      }
    } else before = now; // time stands still until all frames are there
    requestAnimationFrame(tick);
  }
  const step = (frames) => {
    state.at = Math.max(0, Math.min(1, state.at + frames / Math.max(1, seconds() * first.fps)));
    sync();
  };

  async function listFiles(select) {
    state.files = (await getJson("/api/predictions")).files;
    files.replaceChildren(
      element("option", { value: "" }, "no predictions"),
      ...state.files.map((file) => element("option", { value: file.number }, file.name)),
    );
    if (select !== undefined) state.file = String(select);
    files.value = state.file ?? "";
  }
  feature.addEventListener("change", () => {
    state.key = feature.value;
    load();
  });
  files.addEventListener("change", () => {
    state.file = files.value;
    load();
  });
  upload.addEventListener("change", async () => {
    const file = upload.files[0];
    if (!file) return;
    try {
      const answer = await get(
        `/api/predictions?name=${encodeURIComponent(file.name)}`,
        undefined,
        { method: "POST", body: file },
      );
      await listFiles((await answer.json()).number);
      await load();
    } catch (error) {
      wrong.textContent = [error.message, error.report?.hint].filter(Boolean).join("; ");
    }
  });
  slider.addEventListener("input", () => {
    state.at = slider.value / 1000;
    sync();
  });
  slider.addEventListener("keydown", (event) => event.preventDefault());
  resized.observe(curves);
  setKeys([
    { keys: [" "], shown: "space", does: "play or pause", run: play },
    { keys: ["ArrowRight"], shift: false, shown: "→", does: "one frame on", run: () => step(1) },
    { keys: ["ArrowLeft"], shift: false, shown: "←", does: "one frame back", run: () => step(-1) },
    {
      keys: ["ArrowRight"],
      shift: true,
      shown: "shift →",
      does: "one second on",
      run: () => step(first.fps),
    },
    {
      keys: ["ArrowLeft"],
      shift: true,
      shown: "shift ←",
      does: "one second back",
      run: () => step(-first.fps),
    },
    {
      keys: ["Home"],
      shown: "Home",
      does: "the beginning",
      run: () => {
        state.at = 0;
        sync();
      },
    },
    {
      keys: ["End"],
      shown: "End",
      does: "the end",
      run: () => {
        state.at = 1;
        sync();
      },
    },
    {
      keys: ["a"],
      shown: "a",
      does: "in step by time, or by share of the episode",
      run: () => {
        by.click();
        draw();
      },
    },
    { keys: ["k"], shown: "k", does: "choose the feature", run: () => feature.focus() },
    { keys: ["p"], shown: "p", does: "choose predictions", run: () => files.focus() },
    {
      keys: ["Escape"],
      shown: "Esc",
      does: "leave the field, then the page",
      run: () => {
        if (document.activeElement.matches("select, input")) document.activeElement.blur();
        else history.back();
      },
    },
  ]);
  by.addEventListener("click", draw);
  await listFiles();
  await load();
  // For tests and for the curious.
  main.demoreel = {
    state,
    episodes,
    go: (place) => {
      state.at = place;
      return sync();
    },
  };
  return () => {
    state.playing = false;
    for (const { cameras } of shownCameras) for (const view of cameras) view.images.close();
    delete main.dataset.compared;
  };
}
