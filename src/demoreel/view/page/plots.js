// How the episodes' numbers are distributed: small plots in which a selection filters the table.
import { clear, count, element } from "./tools.js";

const BINS = 40,
  WIDE = 280,
  HIGH = 44;

export const short = (value) => {
  if (!Number.isFinite(value)) return "";
  const size = Math.abs(value);
  return size >= 1e5 || (size > 0 && size < 1e-3)
    ? value.toExponential(1)
    : Number(value.toPrecision(3)).toLocaleString("en");
};

// Draws plots into `parent`; `ranges` is a map from a measure to its [least, largest], `changed` is
// called when it was changed, and `pick` with a task.
export class Plots {
  constructor(parent, ranges, changed, pick) {
    Object.assign(this, { parent, ranges, changed, pick });
    this.plots = new Map();
    this.search = element("input", {
      type: "search",
      placeholder: "find a plot",
      "aria-label": "Find a plot",
    });
    this.search.addEventListener("input", () => this.sift());
    this.note = element("div", { class: "note", role: "status" });
    this.bar = element("progress", { max: 1, value: 0, "aria-label": "Episodes measured" });
    this.tasks = element("div", { class: "tasks" });
    this.list = element("div", {});
    parent.append(
      element("div", { class: "tools" }, this.search),
      this.bar,
      this.note,
      this.tasks,
      this.list,
    );
  }

  show(answer, task) {
    const running = answer.done < answer.of;
    this.bar.style.visibility = running ? "" : "hidden";
    this.bar.value = answer.of ? answer.done / answer.of : 1;
    if (running)
      this.note.textContent = `measured ${answer.done.toLocaleString("en")} of ${count(answer.of, "episode")}`;
    else this.tellProblems(answer.problems);
    this.drawTasks(answer.tasks, task);
    for (const told of answer.plots) {
      if (!this.plots.has(told.key)) this.add(told);
      Object.assign(this.plots.get(told.key), { told, chosen: told.chosen || told.counts });
      this.draw(told.key);
    }
    this.sift();
  }

  tellProblems([first, ...more]) {
    if (this.note.textContent === [first, ...more].join("")) return; // it may have been opened
    this.note.replaceChildren(
      more.length
        ? element(
            "details",
            {},
            element("summary", {}, first),
            more.map((line) => `${line}\n`).join(""),
          )
        : (first ?? ""),
    );
  }

  sift() {
    const words = this.search.value.toLowerCase();
    for (const plot of this.plots.values())
      plot.box.hidden = !plot.told.title.toLowerCase().includes(words);
  }

  drawTasks(tasks, task) {
    clear(this.tasks);
    if (tasks.length < 2) return;
    const most = Math.max(...tasks.map((each) => each.count));
    this.tasks.append(element("h3", {}, "task"));
    for (const each of tasks) {
      const all = element("i"),
        some = element("b");
      all.style.width = `${(100 * each.count) / most}%`;
      some.style.width = `${(100 * each.chosen) / most}%`;
      this.tasks.append(
        element(
          "button",
          {
            class: "task",
            "aria-pressed": String(each.task === task),
            title: each.task,
            onclick: () => this.pick(each.task === task ? null : each.task),
          },
          all,
          some,
          element("span", { class: "text" }, each.task || "(no task)"),
          element("span", { class: "many" }, each.chosen.toLocaleString("en")),
        ),
      );
    }
  }

  add(told) {
    const canvas = element("canvas", { width: WIDE * 2, height: HIGH * 2, "aria-hidden": "true" });
    const ends = element("div", { class: "ends" });
    const box = element(
      "div",
      {
        class: "plot",
        tabindex: 0,
        role: "group",
        "data-measure": told.key,
        title:
          "Drag to filter; with the keyboard: arrow keys move the lower end, with shift the upper one, Delete ends it",
      },
      element("h3", {}, told.title),
      canvas,
      ends,
    );
    const plot = { told, box, canvas, ends, chosen: told.counts };
    this.plots.set(told.key, plot);
    this.list.append(box);
    const binAt = (event) => {
      const area = canvas.getBoundingClientRect();
      return Math.max(
        0,
        Math.min(BINS - 1, Math.floor(((event.clientX - area.left) / area.width) * BINS)),
      );
    };
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      from = binAt(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (from !== null) this.select(plot, from, binAt(event), false);
    });
    canvas.addEventListener("pointerup", (event) => {
      const to = binAt(event),
        had = this.ranges.has(told.key) && from === to && plot.moved !== true;
      plot.moved = false;
      if (had) {
        this.ranges.delete(told.key);
        this.draw(told.key);
        this.changed();
      } else this.select(plot, from, to, true);
      from = null;
    });
    box.addEventListener("keydown", (event) => this.key(plot, event));
  }

  // From one bin to another, both in it; the outermost bins hold all that lies beyond them.
  select(plot, one, other, ended) {
    const { told } = plot,
      width = (told.high - told.low) / BINS || 1;
    const first = Math.min(one, other),
      last = Math.max(one, other);
    plot.moved = one !== other || plot.moved;
    const low = first === 0 ? told.least : told.low + first * width,
      high = last === BINS - 1 ? told.most : told.low + (last + 1) * width;
    this.ranges.set(told.key, [low, high]);
    plot.bins = [first, last];
    this.draw(told.key);
    if (ended) this.changed();
  }

  key(plot, event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Delete" || event.key === "Backspace") {
      this.ranges.delete(plot.told.key);
      this.draw(plot.told.key);
      this.changed();
    } else if (by) {
      const [first, last] = this.bins(plot) || [0, BINS - 1];
      const moved = event.shiftKey
        ? [first, Math.max(first, Math.min(BINS - 1, last + by))]
        : [Math.max(0, Math.min(last, first + by)), last];
      this.select(plot, moved[0], moved[1], true);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  bins(plot) {
    const range = this.ranges.get(plot.told.key);
    if (!range) return null;
    if (plot.bins) return plot.bins;
    const { told } = plot,
      width = (told.high - told.low) / BINS || 1;
    const bin = (value) => Math.max(0, Math.min(BINS - 1, Math.round((value - told.low) / width)));
    return [bin(range[0]), Math.max(0, bin(range[1]) - 1)];
  }

  draw(key) {
    const plot = this.plots.get(key);
    if (!plot) return;
    const { told, canvas, chosen } = plot,
      context = canvas.getContext("2d"),
      style = getComputedStyle(document.documentElement);
    const range = this.ranges.get(key);
    if (!range) plot.bins = null;
    context.clearRect(0, 0, canvas.width, canvas.height);
    const most = Math.max(1, ...told.counts),
      step = canvas.width / BINS;
    // The root of a count: a single episode far away is still seen beside thousands.
    const tall = (number) =>
      number ? Math.max(3, Math.sqrt(number / most) * (canvas.height - 4)) : 0;
    const bins = this.bins(plot);
    if (bins) {
      context.fillStyle = style.getPropertyValue("--row");
      context.fillRect(bins[0] * step, 0, (bins[1] - bins[0] + 1) * step, canvas.height);
    }
    told.counts.forEach((number, bin) => {
      context.fillStyle = style.getPropertyValue("--line");
      context.fillRect(bin * step + 1, canvas.height - tall(number), step - 2, tall(number));
      context.fillStyle = style.getPropertyValue("--accent");
      context.fillRect(
        bin * step + 1,
        canvas.height - tall(chosen[bin]),
        step - 2,
        tall(chosen[bin]),
      );
    });
    plot.box.classList.toggle("on", Boolean(range));
    plot.ends.replaceChildren(
      element("span", {}, short(told.least)),
      element("span", { class: "range" }, range ? `${short(range[0])} to ${short(range[1])}` : ""),
      element("span", {}, short(told.most)),
    );
  }
}
