// The first page: the datasets of a folder. One dataset alone is opened at once.
import { clear, count, duration, element, getJson, setKeys, setPath } from "./tools.js";

const COLUMNS = "minmax(240px, 2fr) 90px 110px 110px 90px 80px 90px 170px";

export async function showDatasets(main) {
  setPath([["datasets"]]);
  const { datasets } = await getJson("/api/datasets");
  if (datasets.length === 1) { location.replace(`#/d/${datasets[0].id}`); return () => {}; }
  document.getElementById("facts").append(count(datasets.length, "dataset"));
  const search = element("input", { type: "search", placeholder: "search name, robot", "aria-label": "Search datasets" });
  const list = element("div", { class: "scroll", role: "list" });
  const tall = element("div", { class: "tall" });
  list.append(tall);
  const names = ["dataset", "version", "robot", "episodes", "length", "fps", "cameras", "changed"];
  const head = element("div", { class: "grid head" }, ...names.map((name) => element("span", {}, name)));
  head.style.gridTemplateColumns = COLUMNS;
  main.append(element("div", { class: "tools" }, search), head, list);
  let at = 0, shown = [];
  const draw = () => {
    const words = search.value.toLowerCase();
    shown = datasets.filter((each) => `${each.name} ${each.robot || ""}`.toLowerCase().includes(words));
    at = Math.max(0, Math.min(at, shown.length - 1));
    clear(tall);
    tall.style.height = `${shown.length * 32}px`;
    if (!shown.length) tall.append(element("div", { class: "empty" }, "No dataset has this in its name."));
    shown.forEach((each, number) => {
      const seconds = each.fps > 0 ? each.frames / each.fps : NaN;
      const cells = each.error
        ? [each.name, element("span", { class: "dim" }, each.error)]
        : [each.name, each.version, each.robot, Number(each.episodes || 0).toLocaleString("en"), duration(seconds), each.fps ?? "",
          each.cameras, each.changed ? new Date(each.changed * 1000).toISOString().slice(0, 16).replace("T", " ") : ""];
      const row = element("a", { class: `item grid${number === at ? " at" : ""}`, href: `#/d/${each.id}`, role: "listitem" },
        ...cells.map((cell) => element("span", { class: "cell" }, cell)));
      row.style.gridTemplateColumns = each.error ? "minmax(240px, 2fr) 3fr" : COLUMNS;
      row.style.top = `${number * 32}px`;
      row.style.height = "32px";
      tall.append(row);
    });
  };
  search.addEventListener("input", draw);
  draw();
  const move = (by) => { at += by; draw(); tall.querySelector(".at")?.scrollIntoView({ block: "nearest" }); };
  setKeys([
    { keys: ["ArrowDown", "j"], shown: "↓ j", does: "next dataset", run: () => move(1) },
    { keys: ["ArrowUp", "k"], shown: "↑ k", does: "previous dataset", run: () => move(-1) },
    { keys: ["Enter"], shown: "Enter", does: "open", run: () => { if (shown[at]) location.hash = `#/d/${shown[at].id}`; } },
    { keys: ["/"], shown: "/", does: "search", run: () => search.focus() },
    { keys: ["Escape"], shown: "Esc", does: "leave the search field", run: () => search.blur() },
  ]);
  return () => {};
}
