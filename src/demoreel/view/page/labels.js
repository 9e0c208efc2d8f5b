// What is said of an episode, on a timeline: subtasks and other language that holds from a frame
// on, events at one frame, and columns of texts and truths, which are only shown.
import { clear, element } from "./tools.js";

const HOLDING = ["subtask", "plan", "memory", "motion"];
const EVENTS = ["interjection", "vqa", "trace"];
const OF_A_CAMERA = new Set(["vqa", "trace"]); // LeRobot demands their camera, and of others that there is none
const COLOURS = [
  "#0072b2",
  "#009e73",
  "#cc79a7",
  "#b06a00",
  "#3f7fb5",
  "#8a6d00",
  "#7a5195",
  "#5f6b73",
];

// Asks for a text; `fields` are selections beside it. Gives null where it was left.
export function ask(title, value = "", { known = [], fields = {}, remove = false } = {}) {
  return new Promise((resolve) => {
    const list = element(
      "datalist",
      { id: "known-texts" },
      ...[...new Set(known)].map((text) => element("option", { value: text })),
    );
    const input = element("input", {
      type: "text",
      value,
      list: "known-texts",
      "aria-label": title,
      size: 60,
      autofocus: "",
    });
    const chosen = Object.entries(fields).map(([name, options]) => {
      const select = element(
        "select",
        { name, "aria-label": name },
        ...options.map((option) => element("option", { value: option }, option)),
      );
      return [name, select];
    });
    let answer = null;
    const done = (found) => {
      answer = found;
      dialog.close();
    };
    const form = element(
      "form",
      { method: "dialog", class: "ask" },
      input,
      ...chosen.map(([, select]) => select),
      element("button", { type: "submit", class: "first" }, "OK"),
      remove
        ? element("button", { type: "button", onclick: () => done({ remove: true }) }, "Remove")
        : null,
      element("button", { type: "button", onclick: () => done(null) }, "Cancel"),
    );
    const style = form.elements.style,
      camera = form.elements.camera;
    const fit = () => {
      if (camera) camera.hidden = !OF_A_CAMERA.has(style.value);
    };
    style?.addEventListener("change", fit);
    fit();
    const dialog = element("dialog", {}, element("h2", {}, title), form, list);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      done({
        text: input.value.trim(),
        ...Object.fromEntries(chosen.map(([name, select]) => [name, select.value])),
      });
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    input.select();
  });
}

// Rows of one style: a new one from `from` to `to`; what held at `to` goes on there.
export function painted(rows, style, from, to, content, length) {
  const own = rows.filter((row) => row.style === style).sort((a, b) => a.frame - b.frame);
  const held = own.findLast((row) => row.frame <= to);
  const left = rows.filter((row) => row.style !== style || row.frame < from || row.frame >= to);
  left.push({ frame: from, style, content });
  if (held && to < length && !own.some((row) => row.frame === to))
    left.push({ ...held, frame: to });
  return tidy(left, style);
}

// Two in a row that say the same are one.
function tidy(rows, style) {
  const own = rows.filter((row) => row.style === style).sort((a, b) => a.frame - b.frame);
  const kept = own.filter((row, place) => !place || row.content !== own[place - 1].content);
  return [...rows.filter((row) => row.style !== style), ...kept].sort((a, b) => a.frame - b.frame);
}

export class Timeline {
  // `read(name)` gives the rows of "persistent" or "events"; `write(name, rows)` changes them.
  constructor(parent, length, { read, write, seek, known, cameras = [] }) {
    Object.assign(this, { parent, length, read, write, seek, known, cameras });
    this.texts = 0; // of the lanes below
    this.fixed = []; // lanes of columns: [name, spans]
    this.shown = new Set(["subtask"]);
  }

  share(frame) {
    return `${(100 * frame) / this.length}%`;
  }

  // A lane that is dragged in stays: its place on the screen says which frame is meant.
  draw() {
    this.late = this.dragged;
    if (this.dragged) return;
    clear(this.parent);
    const persistent = this.read("persistent"),
      events = this.read("events");
    const styles = [
      ...HOLDING,
      ...new Set(persistent.map((row) => row.style).filter((style) => !HOLDING.includes(style))),
    ];
    for (const style of styles) {
      const own = persistent.filter((row) => row.style === style).sort((a, b) => a.frame - b.frame);
      if (own.length || this.shown.has(style)) this.holding(String(style), style, own);
    }
    this.eventLane(events);
    for (const [name, spans] of this.fixed) {
      const track = this.lane(name, false);
      for (const span of spans)
        this.span(track, span.from, span.to, span.text, span.colour ?? "var(--line)");
    }
    this.show(this.frame ?? 0);
  }

  lane(name, editable, title = "") {
    const track = element("div", {
      class: editable ? "track editable" : "track",
      "data-lane": name,
      title,
    });
    track.append(element("div", { class: "now" }));
    this.parent.append(
      element(
        "div",
        { class: "lane" },
        element("span", { class: "label", title: name }, name),
        track,
      ),
    );
    return track;
  }

  span(track, from, to, text, colour) {
    const made = element(
      "div",
      { class: "span", title: text, "data-from": from, "data-to": to },
      text,
    );
    made.style.left = this.share(from);
    made.style.width = this.share(to - from);
    made.style.background = colour;
    track.append(made);
    return made;
  }

  holding(name, style, own) {
    const track = this.lane(
      name,
      true,
      "Drag to add; drag an edge to move it; double-click to change",
    );
    own.forEach((row, place) => {
      const to = own[place + 1]?.frame ?? this.length;
      const texts = [...new Set(own.map((each) => each.content))];
      const made = this.span(
        track,
        row.frame,
        to,
        row.content ?? "",
        COLOURS[texts.indexOf(row.content) % COLOURS.length],
      );
      made.addEventListener("dblclick", (event) => {
        event.stopPropagation();
        this.edit("persistent", row);
      });
      const edge = element("i", { class: "edge", title: "Drag to move where it begins" });
      edge.addEventListener("pointerdown", (event) =>
        this.drag(
          event,
          track,
          (frame) => {
            const low = place ? own[place - 1].frame + 1 : 0,
              high = (own[place + 1]?.frame ?? this.length) - 1;
            return Math.max(low, Math.min(high, frame));
          },
          (frame) => this.change("persistent", row, { frame }),
        ),
      );
      made.prepend(edge);
    });
    track.addEventListener("pointerdown", (event) => {
      if (event.button || event.defaultPrevented) return;
      const begin = this.frameOf(event, track);
      const ghost = this.span(track, begin, begin + 1, "", "var(--accent)");
      ghost.classList.add("ghost");
      this.drag(
        event,
        track,
        (frame) => {
          const [from, to] = [Math.min(begin, frame), Math.max(begin, frame)];
          ghost.style.left = this.share(from);
          ghost.style.width = this.share(to - from);
          return frame;
        },
        async (frame) => {
          ghost.remove();
          const [from, to] = [Math.min(begin, frame), Math.max(begin, frame)];
          if (to - from < 2) {
            this.seek(begin);
            return;
          }
          await this.add(style, from, to);
        },
      );
    });
  }

  eventLane(events) {
    const track = this.lane(
      "events",
      true,
      "Double-click to say something at a frame; drag to move",
    );
    for (const row of events) {
      const mark = element("button", {
        class: "event",
        title: `${[row.style, row.role, row.camera].filter(Boolean).join(", ")}: ${row.content ?? ""}`,
        "data-from": row.frame,
        "data-style": row.style ?? "",
      });
      mark.style.left = this.share(row.frame + 0.5);
      mark.addEventListener("dblclick", (event) => {
        event.stopPropagation();
        this.edit("events", row);
      });
      mark.addEventListener("pointerdown", (event) =>
        this.drag(
          event,
          track,
          (frame) => {
            mark.style.left = this.share(frame + 0.5);
            return frame;
          },
          (frame) =>
            frame === row.frame ? this.seek(frame) : this.change("events", row, { frame }),
        ),
      );
      track.append(mark);
    }
    track.addEventListener("dblclick", (event) => this.say(this.frameOf(event, track)));
    track.addEventListener("click", (event) => {
      if (event.target === track) this.seek(this.frameOf(event, track));
    });
  }

  frameOf(event, track) {
    const area = track.getBoundingClientRect();
    return Math.max(
      0,
      Math.min(
        this.length - 1,
        Math.floor(((event.clientX - area.left) / area.width) * this.length),
      ),
    );
  }

  drag(event, track, move, end) {
    event.preventDefault();
    event.stopPropagation();
    // The end of what is drawn is behind its last frame, at the right edge of the lane.
    const at = (each) => {
      const area = track.getBoundingClientRect();
      return Math.max(
        0,
        Math.min(this.length, Math.round(((each.clientX - area.left) / area.width) * this.length)),
      );
    };
    let frame = move(at(event));
    this.dragged = true;
    const moving = (each) => {
      frame = move(at(each));
      this.seek(Math.min(frame, this.length - 1));
    };
    const ended = (last) => {
      window.removeEventListener("pointermove", moving);
      window.removeEventListener("pointerup", ended);
      window.removeEventListener("pointercancel", ended);
      this.dragged = false;
      const cancelled = last.type === "pointercancel",
        late = this.late || cancelled;
      if (!cancelled) end(Math.min(frame, this.length));
      if (late) this.draw();
    };
    window.addEventListener("pointermove", moving);
    window.addEventListener("pointerup", ended);
    window.addEventListener("pointercancel", ended);
  }

  async add(style, from, to) {
    const found = await ask(`${style} from frame ${from} to ${to}`, "", {
      known: this.known(style),
    });
    if (found?.text)
      this.write(
        "persistent",
        painted(this.read("persistent"), style, from, to, found.text, this.length),
      );
    else this.draw();
  }

  // From a frame to where the next one begins, or to the end: what a key adds.
  async addFrom(frame) {
    const found = await ask(`From frame ${frame} on`, "", {
      known: this.known("subtask"),
      fields: { style: HOLDING },
    });
    if (!found?.text) return;
    const next = this.read("persistent")
      .filter((row) => row.style === found.style && row.frame > frame)
      .map((row) => row.frame);
    this.write(
      "persistent",
      painted(
        this.read("persistent"),
        found.style,
        frame,
        Math.min(this.length, ...next),
        found.text,
        this.length,
      ),
    );
  }

  async say(frame) {
    const fields = {
      style: EVENTS.filter((style) => this.cameras.length || !OF_A_CAMERA.has(style)),
      role: ["user", "assistant"],
    };
    if (this.cameras.length) fields.camera = this.cameras;
    const found = await ask(`At frame ${frame}`, "", { known: this.known("event"), fields });
    if (!found?.text) return;
    const row = { frame, style: found.style, content: found.text };
    if (OF_A_CAMERA.has(found.style)) row.camera = found.camera;
    if (found.role !== "assistant") row.role = found.role;
    this.write(
      "events",
      [...this.read("events"), row].sort((a, b) => a.frame - b.frame),
    );
  }

  async edit(name, row) {
    const found = await ask(`${row.style ?? ""} at frame ${row.frame}`, row.content ?? "", {
      known: this.known(row.style),
      remove: true,
    });
    if (!found) return;
    if (found.remove)
      this.write(
        name,
        this.read(name).filter((each) => each !== row),
      );
    else if (found.text) this.change(name, row, { content: found.text });
  }

  change(name, row, fields) {
    const rows = this.read(name).map((each) => (each === row ? { ...each, ...fields } : each));
    this.write(
      name,
      rows.sort((a, b) => a.frame - b.frame),
    );
  }

  // A column of texts or truths as spans of the same value.
  // Texts are above truths, whichever is known first.
  addColumn(name, values, { truth = false } = {}) {
    const spans = [];
    for (let frame = 0; frame < values.length; frame++) {
      const value = values[frame],
        last = spans.at(-1);
      if (last && last.value === value) last.to = frame + 1;
      else spans.push({ from: frame, to: frame + 1, value });
    }
    if (spans.length > 400) return; // another value at every frame: the row says it
    const shown = spans.filter((span) =>
      truth ? span.value : span.value !== "" && span.value !== null,
    );
    const place = truth ? this.fixed.length : this.texts++;
    this.fixed.splice(place, 0, [
      name,
      shown.map((span) => ({
        ...span,
        text: truth ? "" : String(span.value),
        colour: truth ? "#009e73" : undefined,
      })),
    ]);
  }

  show(frame) {
    this.frame = frame;
    for (const mark of this.parent.querySelectorAll(".now"))
      mark.style.left = this.share(frame + 0.5);
  }
}
