// Numbers over time: a chart for each feature, action over state, one cursor for all.
import uPlot from "./uplot.js";
import { element, scale } from "./tools.js";

// Colours that people with any colour vision tell apart (Okabe and Ito), then lighter ones.
const COLOURS = [
  "#0072b2",
  "#e69f00",
  "#009e73",
  "#cc79a7",
  "#56b4e9",
  "#d55e00",
  "#b5a800",
  "#8c8c8c",
  "#5aa7d6",
  "#f3c164",
  "#5cc4a4",
  "#e2b3cc",
  "#9bd1f0",
  "#eb9a5a",
  "#d9cf66",
  "#b9b9b9",
];
const HEIGHT = 150;
const PLAIN = new Set(["timestamp", "frame_index", "episode_index", "index", "task_index"]);
const MOST_LINES = 8; // of a feature in one chart; more dimensions are several charts
const WHOLE = [1, 2, 5]
  .flatMap((by) => [1, 10, 100, 1e3, 1e4, 1e5, 1e6].map((ten) => by * ten))
  .sort((a, b) => a - b); // frames from line to line
const BLOCK = 64; // points whose extremes are known once for all
const MANY = 4000; // points of a line; more are drawn as the extremes of each pixel

export class Charts {
  constructor(parent, info, columns, length, seek, { hidden = [], changed = () => {} } = {}) {
    Object.assign(this, { parent, info, length, seek });
    this.charts = [];
    this.frame = 0;
    this.changed = changed;
    this.hidden = new Set(hidden); // names of lines: KEY[DIM], for the address
    this.range = [0, length - 1];
    const usable = columns.filter(
      (column) => !PLAIN.has(column.key) && info.features[column.key]?.dtype !== "bool",
    );
    const state = usable.find((column) => column.key === "observation.state");
    const action = usable.find((column) => column.key === "action");
    const together = state && action && state.dims === action.dims;
    for (const column of usable) {
      if (together && column === action) continue;
      const title = together && column === state ? "state and action (dashed or pale)" : column.key;
      const groups = groupsOf(info.features[column.key]?.names ?? null, column.dims);
      for (const dims of groups)
        this.add(
          groups.length > 1 ? `${title}: ${dims[0].name} to ${dims.at(-1).name}` : title,
          column,
          together && column === state ? action : null,
          dims,
        );
    }
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(parent);
  }

  add(title, column, over, dims) {
    const names = this.info.features[column.key]?.names;
    const colour = (dim) => COLOURS[(dim - dims[0].dim) % COLOURS.length];
    const xs = Float64Array.from({ length: this.length }, (_, place) => place);
    const lines = [column, over]
      .filter(Boolean)
      .flatMap((each) => dims.map(({ dim }) => lineOf(each, dim, each === over)));
    const now = element("div", { class: "now" });
    const place = element("div", { class: "chart" }, element("div", { class: "title" }, title));
    this.parent.append(place);
    const ink = getComputedStyle(document.documentElement);
    const size = scale();
    const axis = {
      stroke: ink.getPropertyValue("--dim"),
      grid: { stroke: ink.getPropertyValue("--line"), width: 1 },
      ticks: { show: false },
      font: `${11 * size}px system-ui`,
    };
    const chart = { lines, xs };
    chart.plot = new uPlot(
      {
        width: this.width(),
        height: HEIGHT * size,
        legend: { show: false },
        cursor: { y: false, drag: { x: true, y: false, setScale: false }, points: { show: false } },
        scales: { x: { time: false } },
        axes: [
          { ...axis, size: 22 * size, space: 60 * size, incrs: WHOLE },
          { ...axis, size: 50 * size, space: 30 * size },
        ],
        series: [
          {},
          ...lines.map((line) => ({
            stroke: colour(line.dim),
            ...strokeOf(line, this.length > MANY),
            points: { show: false },
          })),
        ],
        hooks: {
          setSelect: [
            (plot) => {
              if (plot.select.width < 4) return;
              this.zoom(
                plot.posToVal(plot.select.left, "x"),
                plot.posToVal(plot.select.left + plot.select.width, "x"),
              );
              plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            },
          ],
          draw: [() => this.place(chart)],
        },
      },
      this.data(chart, 0, this.length - 1),
      place,
    );
    chart.now = now;
    chart.plot.over.append(now);
    chart.plot.over.addEventListener("click", (event) =>
      this.seek(Math.round(chart.plot.posToVal(event.offsetX, "x"))),
    );
    chart.plot.over.addEventListener("dblclick", () => this.zoom(0, this.length - 1));
    chart.plot.over.addEventListener("wheel", (event) => this.wheel(event, chart.plot), {
      passive: false,
    });
    const legend = element("div", { class: "legend" }),
      buttons = [];
    for (const { dim } of dims) {
      const mark = element("i");
      mark.style.background = colour(dim);
      const button = element(
        "button",
        { "aria-pressed": "true", title: "Hide or show; with shift, show only this one" },
        mark,
        names ? names[dim] : `${column.key}[${dim}]`,
      );
      const set = (on) => {
        if ((button.getAttribute("aria-pressed") === "true") === on) return;
        button.setAttribute("aria-pressed", String(on));
        this.hidden[on ? "delete" : "add"](`${column.key}[${dim}]`);
        lines.forEach((line, number) => {
          if (line.dim === dim) chart.plot.setSeries(number + 1, { show: on });
        });
        this.changed();
      };
      buttons.push(set);
      button.addEventListener("click", (event) => {
        if (event.shiftKey) buttons.forEach((each, place) => each(dims[place].dim === dim));
        else set(button.getAttribute("aria-pressed") !== "true");
      });
      if (this.hidden.has(`${column.key}[${dim}]`)) set(false);
      legend.append(button);
    }
    if (column.dims > 1 || names) place.append(legend);
    this.charts.push(chart);
    this.place(chart);
  }

  // The points from `low` to `high`; where they are more than pixels, the extremes of each pixel.
  data(chart, low, high) {
    const first = Math.max(0, Math.floor(low)),
      last = Math.min(this.length - 1, Math.ceil(high));
    const total = last - first + 1;
    if (total <= MANY)
      return [
        chart.xs.subarray(first, last + 1),
        ...chart.lines.map((line) => line.values.subarray(first, last + 1)),
      ];
    const bins = Math.max(200, this.width()),
      xs = new Float64Array(2 * bins);
    const lines = chart.lines.map(() => new Float64Array(2 * bins));
    for (let bin = 0; bin < bins; bin++) {
      const from = first + Math.floor((bin * total) / bins),
        to =
          first +
          Math.max(Math.floor(((bin + 1) * total) / bins), Math.floor((bin * total) / bins) + 1);
      xs[2 * bin] = from;
      xs[2 * bin + 1] = from + (to - from) / 2;
      chart.lines.forEach((line, number) => {
        extremes(line, from, to, lines[number], 2 * bin);
      });
    }
    return [xs, ...lines];
  }

  // With ctrl, the wheel zooms around the pointer; with shift, or sideways, it pans.
  wheel(event, plot) {
    const [low, high] = this.range,
      by = event.deltaY || event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      const at = plot.posToVal(event.offsetX, "x"),
        scale = Math.exp(by / 300);
      this.zoom(at - (at - low) * scale, at + (high - at) * scale);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      this.pan(((high - low) * by) / 1000);
    else return;
    event.preventDefault();
  }
  pan(by) {
    const [low, high] = this.range;
    const moved = Math.max(-low, Math.min(this.length - 1 - high, by));
    this.zoom(low + moved, high + moved);
  }

  zoom(low, high) {
    const most = this.length - 1;
    low = Math.max(0, Math.min(low, most - 1));
    high = Math.min(most, Math.max(high, low + 1));
    this.range = [low, high];
    this.changed();
    const isMany = Math.ceil(high) - Math.floor(low) + 1 > MANY;
    for (const chart of this.charts) {
      chart.lines.forEach((line, number) =>
        Object.assign(chart.plot.series[number + 1], strokeOf(line, isMany)),
      );
      chart.plot.setData(this.data(chart, low, high), false);
      chart.plot.setScale("x", { min: low, max: high });
    }
  }

  width() {
    return Math.max(200, this.parent.clientWidth - 4);
  }
  resize() {
    for (const chart of this.charts)
      chart.plot.setSize({ width: this.width(), height: HEIGHT * scale() });
  }

  show(frame) {
    this.frame = frame;
    for (const chart of this.charts) this.place(chart);
  }
  place(chart) {
    if (!chart.now) return;
    const left = chart.plot.valToPos(this.frame, "x");
    // Nothing is measured here: the page would be laid out for each frame.
    chart.now.style.display =
      left >= 0 && left <= chart.plot.bbox.width / devicePixelRatio ? "" : "none";
    chart.now.style.transform = `translateX(${left}px)`;
  }
  close() {
    this.resized.disconnect();
    for (const chart of this.charts) chart.plot.destroy();
  }
}

// Dimensions in groups that one can tell apart: a new one begins where the names' first word changes
// (left, right), and after MOST_LINES.
function groupsOf(names, size) {
  const all = Array.from({ length: size }, (_, dim) => ({
    dim,
    name: names ? names[dim] : `[${dim}]`,
  }));
  if (size <= MOST_LINES) return [all];
  const word = ({ name }) =>
    String(name)
      .split(/[^A-Za-z]+|(?<=[a-z])(?=[A-Z])/)
      .filter((part) => part.length > 1)[0] ?? "";
  const runs = [];
  for (const each of all) {
    const last = runs.at(-1);
    if (last && word(last[0]) === word(each)) last.push(each);
    else runs.push([each]);
  }
  const groups = [];
  for (const run of runs) {
    // Runs of one or two have no chart of their own.
    if (
      groups.length &&
      Math.min(groups.at(-1).length, run.length) <= 2 &&
      groups.at(-1).length + run.length <= MOST_LINES
    ) {
      groups.at(-1).push(...run);
      continue;
    }
    const parts = Math.ceil(run.length / MOST_LINES);
    for (let part = 0; part < parts; part++)
      groups.push(
        run.slice(
          Math.round((part * run.length) / parts),
          Math.round(((part + 1) * run.length) / parts),
        ),
      );
  }
  return groups;
}

// How a line is drawn. A browser takes ten times as long to dash a zigzag of extremes as to draw it,
// so that lines of many points are pale instead.
function strokeOf(line, isMany) {
  return {
    width: (isMany ? 1 : 1.2) * scale(),
    dash: line.dashed && !isMany ? [5, 4] : undefined,
    alpha: line.dashed && isMany ? 0.5 : 1,
  };
}

function lineOf(column, dim, dashed) {
  const values = dimension(column, dim),
    blocks = Math.ceil(values.length / BLOCK);
  const least = new Float64Array(blocks),
    most = new Float64Array(blocks);
  const line = { dim, dashed, values, least, most };
  if (values.length > MANY)
    for (let block = 0; block < blocks; block++) {
      const found = [0, 0];
      scan(
        values,
        block * BLOCK,
        Math.min(values.length, (block + 1) * BLOCK),
        found,
        0,
        Infinity,
        -Infinity,
      );
      [least[block], most[block]] = found;
    }
  return line;
}

// Puts the least and the largest of some values in two places, beginning with those known before.
function scan(values, from, to, into, at, least, most) {
  for (let place = from; place < to; place++) {
    const value = values[place];
    if (value < least) least = value;
    if (value > most) most = value;
  }
  into[at] = least;
  into[at + 1] = most;
}

function extremes(line, from, to, into, at) {
  const first = Math.ceil(from / BLOCK),
    stop = Math.floor(to / BLOCK);
  if (stop <= first) {
    scan(line.values, from, to, into, at, Infinity, -Infinity);
    return;
  }
  scan(line.values, from, first * BLOCK, into, at, Infinity, -Infinity);
  for (let block = first; block < stop; block++) {
    if (line.least[block] < into[at]) into[at] = line.least[block];
    if (line.most[block] > into[at + 1]) into[at + 1] = line.most[block];
  }
  scan(line.values, stop * BLOCK, to, into, at, into[at], into[at + 1]);
}

function dimension(column, dim) {
  const { values, dims } = column;
  const found = new Float64Array(values.length / dims);
  for (let place = 0; place < found.length; place++) found[place] = values[place * dims + dim];
  return found;
}

export function parseColumns(buffer) {
  const view = new DataView(buffer),
    size = Number(view.getBigUint64(0, true));
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  let at = 8 + size;
  for (const column of head.columns) {
    const total = head.length * column.dims;
    column.values =
      column.type === "<f4"
        ? new Float32Array(buffer, at, total)
        : new Float64Array(buffer, at, total);
    at += Math.ceil(column.values.byteLength / 8) * 8;
  }
  return head;
}
