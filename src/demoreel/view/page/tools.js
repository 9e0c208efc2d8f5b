// What every page uses: elements (whose text is never markup), requests, keys.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null) made.setAttribute(key, value);
  }
  for (const child of children) if (child !== null && child !== undefined) made.append(child);
  return made;
}

export function clear(node) {
  node.replaceChildren();
}

export class RequestError extends Error {
  constructor(status, report) {
    super(report.message);
    this.status = status;
    this.report = report;
  }
}

export async function get(path, signal, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { signal, credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, {
      message: "The viewer does not answer.",
      hint: "see whether demoreel view still runs",
    });
  }
  if (!answer.ok) {
    const text = await answer.text();
    let report = { message: text.trim() };
    try {
      report = JSON.parse(text);
    } catch {
      /* a plain text */
    }
    throw new RequestError(answer.status, report);
  }
  return answer;
}

export const getJson = async (path, signal) => (await get(path, signal)).json();
export const getBytes = async (path, signal) => (await get(path, signal)).arrayBuffer();

export function problem(error) {
  const report = error.report || { message: `${error.name || "Error"}: ${error.message || error}` };
  const lines = [report.message];
  for (const [name, value] of Object.entries(report.where || {})) lines.push(`  ${name}: ${value}`);
  if (report.hint) lines.push(`  next: ${report.hint}`);
  return element("div", { class: "error", role: "alert" }, lines.join("\n"));
}

let known = [];
export function setKeys(list) {
  known = list;
}
export function keys() {
  return known;
}

export function setPath(parts) {
  const path = document.getElementById("path");
  clear(path);
  parts.forEach(([text, address], number) => {
    if (number) path.append(" / ");
    path.append(address ? element("a", { href: address }, text) : text);
  });
  document.title = `${parts.map(([text]) => text).join(" / ")} - demoreel`;
}

export function duration(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${(seconds / 60).toFixed(1)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export const count = (number, one, many = `${one}s`) =>
  `${Number(number).toLocaleString("en")} ${number === 1 ? one : many}`;

// Sizes are those of a small screen, whose root font has 16 pixels; on a large one, all is larger.
export const scale = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
export const scaled = (sizes) => sizes.replace(/(\d+)px/g, (_, pixels) => `${pixels / 16}rem`);

// A whole number of an address, between two; null where it has none.
export function numberIn(query, name, least, most) {
  const text = query.get(name);
  return /^\d+$/.test(text ?? "") ? Math.max(least, Math.min(most, Number(text))) : null;
}

export function later(run, delay) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), delay);
  };
}
