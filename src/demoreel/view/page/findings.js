// What `demoreel check` finds, run in the background: each linked to its episode and frame.
import { clear, count, element, get, getJson, problem } from "./tools.js";

const MARKS = { error: "✖", warning: "▲", hint: "●" };
const AT_ONCE = 5e6; // frames; larger and remote datasets are checked when they are asked to be

export const mark = (severity) =>
  element(
    "span",
    { class: `mark ${severity}`, role: "img", "aria-label": severity, title: severity },
    MARKS[severity],
  );

export async function post(path, value) {
  return (
    await get(path, undefined, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(value),
    })
  ).json();
}

export class Findings {
  constructor(parent, id, info, told) {
    Object.assign(this, { parent, id, info, told });
    this.state = null;
    this.closed = false;
    this.status = element("div", { class: "note", role: "status" });
    this.bar = element("progress", { max: 1, value: 0, "aria-label": "Checked" });
    this.list = element("div", { class: "findings" });
    const begin = (deep) => () => this.start(deep);
    this.buttons = element("div", { class: "tools" });
    this.check = element("button", { onclick: begin(false) }, "check");
    this.deep = element(
      "button",
      { onclick: begin(true), title: "Also decodes every frame of every camera" },
      "check all frames",
    );
    this.cancel = element("button", { onclick: () => this.stop() }, "cancel");
    this.buttons.append(this.check, this.deep, this.cancel);
    parent.append(this.buttons, this.bar, this.status, this.list);
    this.begin();
  }

  async begin() {
    try {
      this.take(await getJson(`/api/d/${this.id}/check`));
      const first = !this.state.job && !this.state.is_checked;
      if (first && this.info.frames <= AT_ONCE && !this.info.place.includes("://"))
        await this.start(false);
      else this.watch();
    } catch (error) {
      this.status.replaceChildren(problem(error));
    }
  }

  async start(deep) {
    try {
      this.take(await post(`/api/d/${this.id}/check`, { deep }));
      this.watch();
    } catch (error) {
      this.status.replaceChildren(problem(error));
    }
  }
  async stop() {
    try {
      await post(`/api/jobs/${this.state.job.id}/cancel`, {});
    } catch (error) {
      this.status.replaceChildren(problem(error));
    }
  }

  async watch() {
    if (this.watching) return;
    this.watching = true;
    try {
      while (!this.closed && this.state.job?.state === "running") {
        await new Promise((resolve) => setTimeout(resolve, 300));
        if (!this.closed) this.take(await getJson(`/api/d/${this.id}/check`));
      }
    } catch (error) {
      this.status.replaceChildren(problem(error));
    }
    this.watching = false;
  }

  take(state) {
    const before = this.state;
    this.state = state;
    const running = state.job?.state === "running";
    this.bar.style.visibility = running ? "" : "hidden";
    this.bar.value = state.job?.share || 0;
    this.check.disabled = this.deep.disabled = running;
    this.cancel.disabled = !running;
    const said = running
      ? `checking: ${Math.round(100 * state.job.share)} %`
      : state.job?.state === "failed"
        ? state.job.result.message
        : state.job?.state === "cancelled"
          ? "cancelled"
          : !state.is_checked
            ? "not checked yet"
            : state.findings.length
              ? state.is_current
                ? ""
                : "the dataset has changed since; check it again"
              : "nothing is wrong";
    this.status.textContent = said;
    if (
      !before ||
      before.job?.state !== state.job?.state ||
      before.findings.length !== state.findings.length
    ) {
      this.draw();
      this.told(state);
    }
  }

  // "2 errors, 3 warnings", for the button that opens this.
  get summary() {
    const state = this.state;
    if (!state) return "check";
    if (state.job?.state === "running") return `checking ${Math.round(100 * state.job.share)} %`;
    if (!state.is_checked) return state.job?.state === "failed" ? "the check failed" : "check";
    const codes = new Map();
    for (const finding of state.findings) codes.set(finding.code, finding.severity);
    const sums = { error: 0, warning: 0, hint: 0 };
    for (const [code, severity] of codes) sums[severity] += state.counts[code];
    const parts = Object.entries(sums)
      .filter(([, number]) => number)
      .map(([severity, number]) => count(number, severity));
    return parts.length ? parts.join(", ") : "checked: sound";
  }

  draw() {
    clear(this.list);
    const groups = new Map();
    for (const finding of this.state.findings) {
      if (!groups.has(finding.code)) groups.set(finding.code, []);
      groups.get(finding.code).push(finding);
    }
    for (const [code, found] of groups) {
      const lines = found.slice(0, 50).map((finding) => this.line(finding));
      if (found.length > 50)
        lines.push(
          element(
            "div",
            { class: "dim" },
            `and ${count(found.length - 50, "more place", "more places")}`,
          ),
        );
      this.list.append(
        element(
          "details",
          { open: groups.size < 6 ? "" : null },
          element(
            "summary",
            {},
            mark(found[0].severity),
            ` ${code} `,
            element("span", { class: "dim" }, this.state.counts[code].toLocaleString("en")),
          ),
          element("div", { class: "dim" }, found[0].effect),
          found[0].command ? element("code", {}, found[0].command) : null,
          ...lines,
        ),
      );
    }
    if (this.state.left_out)
      this.list.append(
        element(
          "div",
          { class: "dim" },
          `${count(this.state.left_out, "finding")} more: demoreel check`,
        ),
      );
  }

  line(finding) {
    const { episode, frame, camera, feature, file } = finding.where;
    const where = [
      episode !== undefined && `episode ${episode}`,
      frame !== undefined && `frame ${frame}`,
      camera,
      feature,
      episode === undefined && file,
    ]
      .filter(Boolean)
      .join(", ");
    const text = element("span", {}, finding.what);
    if (episode === undefined)
      return element(
        "p",
        { class: "finding" },
        where ? element("span", { class: "dim" }, `${where}: `) : null,
        text,
      );
    const address = `#/d/${this.id}/e/${episode}${frame !== undefined ? `?f=${frame}` : ""}`;
    return element(
      "p",
      { class: "finding" },
      element("a", { href: address, "data-finding": finding.code }, where),
      " ",
      text,
    );
  }

  close() {
    this.closed = true;
  }
}
