// The pages and the way between them: the address says which dataset, episode and frame is shown.
import { showDatasets } from "./datasets.js";
import { showCompare } from "./compare.js";
import { showDataset } from "./dataset.js";
import { showEpisode } from "./episode.js";
import { showLoader } from "./loader.js";
import { showSide } from "./side.js";
import { clear, element, problem, setKeys, keys } from "./tools.js";

const main = document.getElementById("main");
let leave = () => {};
let current = "";

async function route() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const parts = path.split("/").filter(Boolean);
  const asked = new URLSearchParams(query);
  // A frame in the address of the episode that is shown already: its page takes it.
  if (path === current && leave.go) {
    leave.go(asked);
    return;
  }
  leave();
  leave = () => {};
  current = path;
  setKeys([]);
  clear(main);
  clear(document.getElementById("facts"));
  try {
    if (parts[0] === "d" && parts[2] === "e")
      leave = await showEpisode(main, parts[1], Number(parts[3]), asked);
    else if (parts[0] === "d" && parts[2] === "loader")
      leave = await showLoader(main, parts[1], asked);
    else if (parts[0] === "compare") leave = await showCompare(main, asked);
    else if (parts[0] === "side") leave = await showSide(main, parts.slice(1, 3));
    else if (parts[0] === "d") leave = await showDataset(main, parts[1], asked);
    else leave = await showDatasets(main, asked);
  } catch (error) {
    clear(main);
    main.append(problem(error));
  }
  if (!document.activeElement || document.activeElement === document.body) main.focus();
}

const help = document.getElementById("help");
function showHelp() {
  const list = document.getElementById("keys");
  clear(list);
  for (const key of keys()) list.append(element("dt", {}, key.shown), element("dd", {}, key.does));
  help.showModal();
}
document.getElementById("help-button").addEventListener("click", showHelp);

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey)
    return;
  const field = event.target.matches(
    "input[type=search], input[type=text], input[type=number], input[type=file], textarea, select",
  );
  if (field && event.key !== "Escape") return;
  if (event.key === "?") {
    event.preventDefault();
    showHelp();
    return;
  }
  for (const key of keys()) {
    if (key.keys.includes(event.key) && (key.shift === undefined || key.shift === event.shiftKey)) {
      event.preventDefault();
      key.run(event);
      return;
    }
  }
});

window.addEventListener("hashchange", route);
route();
