// The pages and the way between them: the address says which dataset, episode and frame is shown.
import { showDatasets } from "./datasets.js";
import { showCompare } from "./compare.js";
import { showDataset } from "./dataset.js";
import { showEpisode } from "./episode.js";
import { showLoader } from "./loader.js";
import { showSide } from "./side.js";
import { clear, element, getJson, problem, setKeys, setPath, keys } from "./tools.js";

const main = document.getElementById("main");
let leave = () => {};
let whole = null; // the address of the page that is shown
let visit = new AbortController();
let made = Promise.resolve(); // the page that is shown, or that is still being made

function route() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const asked = new URLSearchParams(query);
  // A frame in the address of the episode that is shown already: its page takes it.
  if (path === whole && leave.go) {
    leave.go(asked);
    return;
  }
  visit.abort();
  visit = new AbortController();
  const { signal } = visit;
  // A page that is left before it is whole gives up first: two would build in the same place.
  made = made.then(() => signal.aborted || show(path, asked, signal));
}

async function show(path, asked, signal) {
  const parts = path.split("/").filter(Boolean);
  leave();
  leave = () => {};
  whole = null;
  // Until the page has its own: one that is slow to come can be left.
  setKeys([
    {
      keys: ["Escape"],
      shown: "Esc",
      does: "back",
      run: () => {
        location.hash = parts[0] === "d" && parts.length > 2 ? `#/d/${parts[1]}` : "#/";
      },
    },
  ]);
  clear(main);
  clear(document.getElementById("facts"));
  try {
    if (parts[0] === "d" && parts[2] === "e")
      leave = await showEpisode(main, parts[1], Number(parts[3]), asked, signal);
    else if (parts[0] === "d" && parts[2] === "loader")
      leave = await showLoader(main, parts[1], asked, signal);
    else if (parts[0] === "compare") leave = await showCompare(main, asked, signal);
    else if (parts[0] === "side") leave = await showSide(main, parts.slice(1, 3), signal);
    else if (parts[0] === "d") leave = await showDataset(main, parts[1], asked, signal);
    else leave = await showDatasets(main, asked, signal);
    whole = path;
  } catch (error) {
    if (signal.aborted) return;
    clear(main);
    setPath([["datasets", "#/"]]);
    main.append(problem(error));
    if (parts[0] === "d" && parts.length === 2) leave = wait(parts[1], signal);
  }
  if (!document.activeElement || document.activeElement === document.body) main.focus();
}

// A dataset of which no episode is saved yet: its page comes when there is one.
function wait(id, signal) {
  const timer = setInterval(async () => {
    try {
      const { episodes } = await getJson(`/api/d/${id}/state`, signal);
      if (episodes === null || signal.aborted) return;
      clearInterval(timer);
      route();
    } catch {
      /* the next look may succeed */
    }
  }, 2000);
  return () => clearInterval(timer);
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
