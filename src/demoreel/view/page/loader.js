// What the loader sees: a frame's sample, for given windows and image size, with pads marked.
import { clear, element, getJson, later, numberIn, problem, setKeys, setPath } from "./tools.js";

// Windows that policies ask for, in frames: what `delta_timestamps` says in seconds.
const PRESETS = {
  "one frame": () => ({}),
  "ACT: 100 actions": () => ({ action: [0, 99] }),
  "diffusion: 2 observations, 16 actions": (cameras) => ({
    ...Object.fromEntries([...cameras, "observation.state"].map((key) => [key, [-1, 0]])),
    action: [-1, 14],
  }),
  "pi0: 50 actions": () => ({ action: [0, 49] }),
};

export async function showLoader(main, id, asked, signal) {
  const info = await getJson(`/api/d/${id}`, signal);
  const cameras = Object.entries(info.features)
    .filter(([, feature]) => feature.kind === "camera")
    .map(([key]) => key);
  const state = {
    episode: numberIn(asked, "e", 0, Infinity) ?? 0,
    frame: numberIn(asked, "f", 0, Infinity) ?? 0,
    length: 1,
    windows: asked.get("windows") || "{}",
    size: asked.get("size") || "",
  };
  setPath([
    ["datasets", "#/"],
    [info.name, `#/d/${id}`],
    [`episode ${state.episode}`, `#/d/${id}/e/${state.episode}`],
    ["what the loader sees"],
  ]);
  const windows = element("textarea", {
    rows: 2,
    spellcheck: "false",
    "aria-label": "delta_timestamps, as JSON",
  });
  windows.value = state.windows;
  const size = element("input", {
    type: "text",
    size: 9,
    placeholder: "as it is",
    value: state.size,
    "aria-label": "image_size, HEIGHTxWIDTH",
  });
  const episode = element("input", {
    type: "number",
    min: 0,
    value: state.episode,
    "aria-label": "Episode",
    size: 7,
  });
  const slider = element("input", {
    type: "range",
    min: 0,
    max: 0,
    value: state.frame,
    "aria-label": "Frame",
  });
  const at = element("output", {});
  const preset = element(
    "select",
    { "aria-label": "Windows of a policy" },
    element("option", { value: "" }, "windows of ..."),
    ...Object.keys(PRESETS).map((name) => element("option", {}, name)),
  );
  const out = element("div", { class: "sample", "aria-live": "polite" });
  main.append(
    element(
      "div",
      { class: "tools loader" },
      element("label", {}, "delta_timestamps ", windows),
      preset,
      element("label", {}, "image_size ", size),
      element("label", {}, "episode ", episode),
      element("label", { class: "grow" }, "frame ", slider),
      at,
    ),
    out,
  );

  let waiting = new AbortController();
  async function show() {
    waiting.abort();
    waiting = new AbortController();
    const signal = waiting.signal;
    at.textContent = `${state.frame} / ${state.length}`;
    const query = new URLSearchParams({ i: state.frame, windows: state.windows, size: state.size });
    try {
      const sample = await getJson(`/api/d/${id}/e/${state.episode}/sample?${query}`, signal);
      query.set("v", info.revision);
      draw(sample, query);
    } catch (error) {
      if (error.name === "AbortError") return;
      clear(out);
      out.append(problem(error));
      delete main.dataset.sample;
    }
    const kept = new URLSearchParams({
      e: state.episode,
      f: state.frame,
      windows: state.windows,
      size: state.size,
    });
    history.replaceState(null, "", `#/d/${id}/loader?${kept}`);
  }

  function draw(sample, query) {
    clear(out);
    for (const field of sample.fields) {
      const pads = field.pads ? field.pads.filter(Boolean).length : 0;
      const shape = field.shape ? ` (${field.shape.join(", ")})` : "";
      const head = element(
        "h3",
        {},
        field.key,
        element(
          "span",
          { class: "dim" },
          ` ${field.type}${shape}${field.pads ? ` · ${field.key}_is_pad: ${pads} of ${field.pads.length}` : ""}`,
        ),
      );
      out.append(
        element(
          "section",
          { "data-field": field.key },
          head,
          field.is_camera ? images(field, query) : field.pads ? lines(field) : plain(field),
        ),
      );
    }
    main.dataset.sample = `${state.episode}:${state.frame}`;
  }

  function images(field, query) {
    const offsets = field.offsets || [0];
    return element(
      "div",
      { class: "strip" },
      ...offsets.map((offset, place) => {
        const pad = field.pads?.[place];
        const address = `/api/d/${id}/e/${state.episode}/sample/image?${query}&camera=${encodeURIComponent(field.key)}&k=${place}`;
        return element(
          "figure",
          { class: pad ? "pad" : "" },
          element("img", {
            src: address,
            alt: `${field.key}, ${offset} frames from this one${pad ? ", a pad" : ""}`,
          }),
          element("figcaption", {}, `${offset > 0 ? "+" : ""}${offset}${pad ? " pad" : ""}`),
        );
      }),
    );
  }

  // A table of a window: a column for each frame, those that are pads hatched.
  function lines(field) {
    const steps = field.offsets.length,
      dims = Math.max(1, Math.floor((field.values?.length || 0) / steps));
    const names = info.features[field.key]?.names;
    if (typeof field.values === "string" || !field.values) return plain(field);
    const head = element(
      "tr",
      {},
      element("th", {}),
      ...field.offsets.map((offset, place) =>
        element(
          "th",
          { class: field.pads[place] ? "pad" : "", scope: "col" },
          `${offset > 0 ? "+" : ""}${offset}${field.pads[place] ? " pad" : ""}`,
        ),
      ),
    );
    const rows = Array.from({ length: dims }, (_, dim) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, names ? names[dim] : `[${dim}]`),
        ...field.offsets.map((_, place) =>
          element(
            "td",
            { class: `number${field.pads[place] ? " pad" : ""}` },
            number(field.values[place * dims + dim]),
          ),
        ),
      ),
    );
    return element(
      "div",
      { class: "wide" },
      element("table", {}, head, ...rows),
      field.left_out ? element("div", { class: "dim" }, `${field.left_out} more values`) : null,
    );
  }
  const number = (value) =>
    typeof value === "number" && !Number.isInteger(value)
      ? value.toPrecision(4)
      : String(value ?? "");
  const plain = (field) =>
    element(
      "div",
      { class: "values" },
      Array.isArray(field.values)
        ? field.values.map(number).join("  ")
        : String(field.values ?? ""),
    );

  async function choose() {
    try {
      const facts = await getJson(`/api/d/${id}/e/${state.episode}`);
      state.length = facts.length;
      state.frame = Math.min(state.frame, facts.length - 1);
      Object.assign(slider, { max: facts.length - 1, value: state.frame });
    } catch (error) {
      clear(out);
      out.append(problem(error));
      return;
    }
    await show();
  }
  const go = (frame) => {
    state.frame = Math.max(0, Math.min(state.length - 1, frame));
    slider.value = state.frame;
    show();
  };
  const changed = later(() => {
    state.windows = windows.value.trim() || "{}";
    state.size = size.value;
    show();
  }, 300);
  windows.addEventListener("input", changed);
  size.addEventListener("input", changed);
  slider.addEventListener("input", () => go(Number(slider.value)));
  slider.addEventListener("keydown", (event) => event.preventDefault());
  episode.addEventListener("change", () => {
    state.episode = Number(episode.value);
    state.frame = 0;
    choose();
  });
  preset.addEventListener("change", () => {
    if (!PRESETS[preset.value]) return;
    const spans = PRESETS[preset.value](cameras);
    const found = {};
    for (const [key, [first, last]] of Object.entries(spans))
      if (key in info.features)
        found[key] = Array.from({ length: last - first + 1 }, (_, place) =>
          Number(((first + place) / info.fps).toFixed(6)),
        );
    windows.value = JSON.stringify(found);
    preset.value = "";
    changed();
  });
  const second = Math.max(1, Math.round(info.fps));
  setKeys([
    {
      keys: ["ArrowRight"],
      shift: false,
      shown: "→",
      does: "one frame on",
      run: () => go(state.frame + 1),
    },
    {
      keys: ["ArrowLeft"],
      shift: false,
      shown: "←",
      does: "one frame back",
      run: () => go(state.frame - 1),
    },
    {
      keys: ["ArrowRight"],
      shift: true,
      shown: "shift →",
      does: "one second on",
      run: () => go(state.frame + second),
    },
    {
      keys: ["ArrowLeft"],
      shift: true,
      shown: "shift ←",
      does: "one second back",
      run: () => go(state.frame - second),
    },
    { keys: ["Home"], shown: "Home", does: "first frame", run: () => go(0) },
    { keys: ["End"], shown: "End", does: "last frame", run: () => go(state.length - 1) },
    { keys: ["w"], shown: "w", does: "change the windows", run: () => windows.focus() },
    { keys: ["s"], shown: "s", does: "change the image size", run: () => size.focus() },
    { keys: ["p"], shown: "p", does: "windows of a policy", run: () => preset.focus() },
    { keys: ["e"], shown: "e", does: "choose the episode", run: () => episode.focus() },
    {
      keys: ["Escape"],
      shown: "Esc",
      does: "leave the field, then the page",
      run: () => {
        if ([windows, size, episode, preset].includes(document.activeElement))
          document.activeElement.blur();
        else location.hash = `#/d/${id}/e/${state.episode}?f=${state.frame}`;
      },
    },
  ]);
  await choose();
  return () => {
    waiting.abort();
    delete main.dataset.sample;
  };
}
