// The first page: the datasets of a folder. One dataset alone is opened at once; of two that were
// named, a page shows both.
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

const COLUMNS = "96px minmax(200px, 2fr) 100px 100px 84px 72px 84px 50px minmax(120px, 1fr) 130px";
const HEADS = [
  [null, "first frame"],
  ["name", "dataset"],
  ["layout", "layout"],
  ["robot", "robot"],
  ["episodes", "episodes"],
  ["seconds", "time"],
  ["size", "size"],
  ["fps", "fps"],
  ["cameras", "cameras"],
  ["changed", "last change"],
];
const NUMBERS = new Set(["episodes", "seconds", "size", "fps"]);
const ROW = 56;
const rowHeight = () => ROW * scale();

export async function showDatasets(main, asked, signal) {
  setPath([["datasets"]]);
  const { datasets, beside } = await getJson("/api/datasets", signal);
  if (datasets.length === 1) {
    location.replace(`#/d/${datasets[0].id}`);
    return () => {};
  }
  if (beside && !asked.has("list")) {
    location.replace(`#/side/${beside.join("/")}`);
    return () => {};
  }
  for (const each of datasets) each.seconds = each.fps > 0 ? each.frames / each.fps : NaN;
  const whole = datasets.reduce((sum, each) => sum + (each.seconds || 0), 0);
  document
    .getElementById("facts")
    .append(element("span", {}, `${count(datasets.length, "dataset")} · ${duration(whole)}`));
  const search = element("input", {
    type: "search",
    placeholder: "search name, robot, camera",
    "aria-label": "Search datasets",
  });
  const note = element("span", { class: "note", role: "status" });
  const list = element("div", { class: "scroll", role: "list" });
  const tall = element("div", { class: "tall" });
  list.append(tall);
  const head = element("div", { class: "grid head" });
  head.style.gridTemplateColumns = scaled(COLUMNS);
  const side = element(
    "button",
    { title: "The marked datasets side by side (v)", onclick: () => beside2() },
    "side by side",
  );
  main.append(
    element("div", { class: "tools" }, search, note, element("span", { class: "space" }), side),
    head,
    list,
  );
  const state = { at: 0, sort: "name", desc: false, marked: new Set(), sizes: new Map() };
  let shown = [];

  const valueOf = (each) =>
    state.sort === "size"
      ? state.sizes.get(each.id)?.bytes
      : state.sort === "cameras"
        ? each.cameras?.length
        : each[state.sort];
  function choose() {
    const words = search.value.toLowerCase();
    shown = datasets.filter((each) =>
      `${each.name} ${each.robot || ""} ${(each.cameras || []).join(" ")}`
        .toLowerCase()
        .includes(words),
    );
    const compare = (one, other) =>
      typeof one === "string" ? one.localeCompare(other) : one - other;
    const known = (value) => value !== undefined && value !== null && value === value;
    shown.sort((a, b) => {
      // what is not known is last either way
      const one = valueOf(a),
        other = valueOf(b);
      if (!known(one) || !known(other)) return known(other) - known(one);
      return (state.desc ? -1 : 1) * compare(one, other);
    });
    state.at = Math.max(0, Math.min(state.at, shown.length - 1));
    note.textContent =
      shown.length === datasets.length ? "" : `${shown.length} of ${datasets.length}`;
    side.disabled = state.marked.size !== 2;
    clear(head);
    for (const [key, name] of HEADS) {
      const arrow = key === state.sort ? (state.desc ? " ▾" : " ▴") : "";
      head.append(
        key
          ? element(
              "button",
              {
                class: NUMBERS.has(key) ? "number" : "",
                title: `Sort by ${name}`,
                "aria-sort":
                  key === state.sort ? (state.desc ? "descending" : "ascending") : "none",
                onclick: () => {
                  state.desc = key === state.sort ? !state.desc : NUMBERS.has(key);
                  state.sort = key;
                  choose();
                },
              },
              name + arrow,
            )
          : element("span", {}, name),
      );
    }
    draw();
  }

  function draw() {
    clear(tall);
    tall.style.height = scaled(`${shown.length * ROW}px`);
    if (!shown.length)
      tall.append(
        element("div", { class: "empty" }, "No dataset has this in its name, robot or cameras."),
      );
    const first = Math.max(0, Math.floor(list.scrollTop / rowHeight()) - 2),
      stop = Math.min(shown.length, first + Math.ceil(list.clientHeight / rowHeight()) + 4);
    for (let number = first; number < stop; number++) {
      const each = shown[number];
      const row = element("a", {
        class: `item grid${number === state.at ? " at" : ""}${state.marked.has(each.id) ? " marked" : ""}`,
        href: `#/d/${each.id}`,
        role: "listitem",
        "data-dataset": each.id,
      });
      row.style.gridTemplateColumns = scaled(each.error ? "96px minmax(240px, 2fr) 3fr" : COLUMNS);
      row.style.top = scaled(`${number * ROW}px`);
      row.style.height = scaled(`${ROW}px`);
      const text = (value, kind = "cell") =>
        element("span", { class: kind, title: String(value ?? "") }, String(value ?? ""));
      if (each.error)
        row.append(
          element("span"),
          text(each.name),
          element("span", { class: "cell problem" }, each.error),
        );
      else {
        const size = state.sizes.get(each.id);
        row.append(
          each.cameras.length
            ? element("img", {
                class: "thumb",
                loading: "lazy",
                width: 80,
                height: 52,
                alt: `First frame of ${each.name}`,
                src: `/api/d/${each.id}/cover`,
                onerror: (event) => {
                  event.target.style.visibility = "hidden";
                },
              })
            : element("span"),
          text(each.name),
          text(each.layout),
          text(each.robot),
          text(Number(each.episodes || 0).toLocaleString("en"), "number"),
          text(duration(each.seconds), "number"),
          text(size ? `${size.is_whole ? "" : "over "}${bytes(size.bytes)}` : "", "number"),
          text(each.fps, "number"),
          text(each.cameras.join(", ")),
          text(each.changed ? localTime(each.changed) : ""),
        );
      }
      tall.append(row);
    }
    askSizes();
  }
  // Listing a dataset's files takes longer than its row: it is asked for when the row is in view.
  const askSizes = later(async () => {
    for (const row of tall.querySelectorAll("[data-dataset]")) {
      const id = row.dataset.dataset;
      if (state.sizes.has(id)) continue;
      state.sizes.set(id, null);
      getJson(`/api/d/${id}/size`)
        .then((size) => {
          state.sizes.set(id, size);
          drawSoon();
        })
        .catch(() => {});
    }
  }, 60);
  const drawSoon = later(draw, 60);
  search.addEventListener("input", choose);
  list.addEventListener("scroll", () => requestAnimationFrame(draw));
  choose();
  const resized = new ResizeObserver(() => draw());
  resized.observe(list);
  const move = (by) => {
    state.at = Math.max(0, Math.min(shown.length - 1, state.at + by));
    const top = state.at * rowHeight();
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + rowHeight() > list.scrollTop + list.clientHeight)
      list.scrollTop = top + rowHeight() - list.clientHeight;
    draw();
  };
  const beside2 = () => {
    if (state.marked.size === 2) location.hash = `#/side/${[...state.marked].join("/")}`;
  };
  setKeys([
    { keys: ["ArrowDown", "j"], shown: "↓ j", does: "next dataset", run: () => move(1) },
    { keys: ["ArrowUp", "k"], shown: "↑ k", does: "previous dataset", run: () => move(-1) },
    { keys: ["Home"], shown: "Home", does: "first dataset", run: () => move(-shown.length) },
    { keys: ["End"], shown: "End", does: "last dataset", run: () => move(shown.length) },
    {
      keys: ["Enter"],
      shown: "Enter",
      does: "open",
      run: () => {
        if (shown[state.at]) location.hash = `#/d/${shown[state.at].id}`;
      },
    },
    {
      keys: ["m"],
      shown: "m",
      does: "mark the dataset",
      run: () => {
        const id = shown[state.at]?.id;
        if (id && !state.marked.delete(id)) state.marked.add(id);
        choose();
      },
    },
    { keys: ["v"], shown: "v", does: "two marked datasets side by side", run: beside2 },
    {
      keys: [">"],
      shown: ">",
      does: "sort by the next column",
      run: () => {
        const known = HEADS.map(([key]) => key).filter(Boolean);
        state.sort = known[(known.indexOf(state.sort) + 1) % known.length];
        choose();
      },
    },
    {
      keys: ["r"],
      shown: "r",
      does: "sort the other way",
      run: () => {
        state.desc = !state.desc;
        choose();
      },
    },
    { keys: ["/"], shown: "/", does: "search", run: () => search.focus() },
    { keys: ["Escape"], shown: "Esc", does: "leave the search field", run: () => search.blur() },
  ]);
  return () => resized.disconnect();
}

// As the clock on the wall has it.
function localTime(seconds) {
  const minutes = new Date(seconds * 1000).getTimezoneOffset();
  return new Date((seconds - 60 * minutes) * 1000).toISOString().slice(0, 16).replace("T", " ");
}

function bytes(size) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000)
      return `${size < 10 && unit !== "B" ? size.toFixed(1) : Math.round(size)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}
