// The draft of a cut: what is changed here, saved as one works, and undone step by step.
import { count, element, get, getJson, problem } from "./tools.js";

const drafts = new Map();

export async function draftOf(id) {
  if (!drafts.has(id)) drafts.set(id, new Draft(id, await getJson(`/api/d/${id}/draft`)));
  return drafts.get(id);
}

class Draft {
  constructor(id, read) {
    this.id = id;
    this.revision = read.revision;
    this.episodes = read.episodes;
    this.target = read.target;
    this.readOnly = read.read_only;
    this.done = [];
    this.undone = [];
    this.listeners = new Set();
    this.trouble = null;
    this.saving = null;
    this.adopt();
  }

  // What this window had not saved when it was left or reloaded: a copy of it stays in the tab.
  adopt() {
    const left = JSON.parse(sessionStorage.getItem(`draft-${this.id}`) || "null");
    if (!left) return;
    this.sent = left.sent;
    const same =
      this.revision === left.revision ||
      (this.revision === left.revision + 1 && JSON.stringify(this.episodes) === left.sent);
    if (!same) {
      sessionStorage.removeItem(`draft-${this.id}`);
      return;
    } // another window went on
    this.episodes = left.episodes;
    this.save();
  }

  of(episode) {
    return this.episodes[episode] || {};
  }
  get size() {
    return Object.keys(this.episodes).length;
  }

  change(episode, fields) {
    this.changeAll({ [episode]: fields });
  }
  // Changes of several episodes are one step to undo.
  changeAll(changes) {
    if (this.readOnly) return;
    const step = Object.entries(changes).map(([episode, fields]) => {
      const before = this.episodes[episode] || {};
      const after = { ...before, ...fields };
      for (const [name, value] of Object.entries(after))
        if (value === null || value === undefined || (value === false && name !== "success"))
          delete after[name];
      return [episode, before, after];
    });
    this.put(step.map(([episode, , after]) => [episode, after]));
    this.done.push(step);
    this.undone = [];
  }
  undo() {
    const step = this.done.pop();
    if (step) {
      this.undone.push(step);
      this.put(step.map(([episode, before]) => [episode, before]));
    }
  }
  redo() {
    const step = this.undone.pop();
    if (step) {
      this.done.push(step);
      this.put(step.map(([episode, , after]) => [episode, after]));
    }
  }
  put(changes) {
    for (const [episode, change] of changes)
      if (Object.keys(change).length) this.episodes[episode] = change;
      else delete this.episodes[episode];
    this.tell();
    this.save();
  }
  // Labels of a file: annotations, or a table with a row for an episode or a frame.
  async take(file) {
    const answer = await get(`/api/d/${this.id}/labels`, undefined, { method: "POST", body: file });
    const { episodes } = await answer.json();
    this.changeAll(episodes);
    return Object.keys(episodes).length;
  }
  tell() {
    for (const listener of this.listeners) listener();
  }

  // At once, so that a reload loses nothing. Changes that come while a save is under way are in the
  // next one, which names the revision that the one before it made.
  save() {
    this.dirty = true;
    const left = JSON.parse(sessionStorage.getItem(`draft-${this.id}`) || "null");
    if (left)
      sessionStorage.setItem(
        `draft-${this.id}`,
        JSON.stringify({ ...left, episodes: this.episodes }),
      );
    this.saving ??= this.saveAll().finally(() => {
      this.saving = null;
    });
    return this.saving;
  }
  async saveAll() {
    while (this.dirty) {
      this.dirty = false;
      const episodes = JSON.stringify(this.episodes);
      sessionStorage.setItem(
        `draft-${this.id}`,
        JSON.stringify({ revision: this.revision, sent: episodes, episodes: this.episodes }),
      );
      try {
        this.revision = (await this.sendDraft()).revision;
        this.trouble = null;
        if (!this.dirty) sessionStorage.removeItem(`draft-${this.id}`);
      } catch (error) {
        this.trouble = error;
      }
      this.tell();
    }
  }
  async sendDraft() {
    const put = () =>
      send("PUT", `/api/d/${this.id}/draft`, { revision: this.revision, episodes: this.episodes });
    try {
      return await put();
    } catch (error) {
      if (error.status !== 409) throw error;
      // The last save of this tab before it was reloaded may have arrived after all.
      const now = await getJson(`/api/d/${this.id}/draft`);
      if (JSON.stringify(now.episodes) !== this.sent) throw error;
      this.revision = now.revision;
      return put();
    }
  }

  async render(fields) {
    await this.save();
    if (this.trouble) throw this.trouble;
    return send("POST", `/api/d/${this.id}/render`, { revision: this.revision, ...fields });
  }

  forget() {
    drafts.delete(this.id);
  }
}

async function send(method, path, value) {
  const body = JSON.stringify(value);
  // A request that is kept alive goes on when the page is left; browsers allow 64 kB of them.
  const answer = await get(path, undefined, {
    method,
    keepalive: body.length < 50000,
    headers: { "Content-Type": "application/json" },
    body,
  });
  return answer.json();
}

// A button that says how much is changed, and the dialog behind it.
export function draftButton(draft, info) {
  const button = element("button", {
    class: "draft",
    title: "Changes, and what to do with them (c)",
  });
  const draw = () => {
    button.textContent = draft.trouble
      ? draft.trouble.status === 409
        ? "changed in another window"
        : "not saved"
      : draft.size
        ? count(draft.size, "change")
        : "no changes";
    button.classList.toggle("bad", Boolean(draft.trouble));
    button.title = draft.trouble ? draft.trouble.message : "Changes, and what to do with them (c)";
  };
  draft.listeners.add(draw);
  draw();
  button.addEventListener("click", () => showDraft(draft, info));
  button.leave = () => draft.listeners.delete(draw);
  return button;
}

function showDraft(draft, info) {
  const isLance = info.layout.startsWith("lance");
  const list = element("div", { class: "changes" });
  const drawList = () => {
    list.replaceChildren();
    for (const [episode, change] of Object.entries(draft.episodes).sort((a, b) => a[0] - b[0])) {
      const parts = [
        change.deleted && "deleted",
        (change.start !== undefined || change.stop !== undefined) &&
          `frames ${change.start ?? 0} to ${change.stop ?? "the end"}`,
        change.splits && `split at ${change.splits.join(", ")}`,
        change.task !== undefined && `task: ${change.task}`,
        change.success !== undefined && (change.success ? "success" : "failure"),
        change.score && `score ${change.score}`,
        change.flag,
        change.redo && "record again",
        change.persistent && count(change.persistent.length, "row of language", "rows of language"),
        change.events && count(change.events.length, "event"),
      ].filter(Boolean);
      list.append(
        element(
          "div",
          {},
          element(
            "a",
            { href: `#/d/${draft.id}/e/${episode}`, onclick: () => dialog.close() },
            `episode ${episode}`,
          ),
          ` ${parts.join("; ")}`,
        ),
      );
    }
    if (!draft.size)
      list.append(
        element(
          "div",
          { class: "dim" },
          "Nothing is changed. On an episode's page: x deletes it, [ and ] trim it, k splits it, t changes its task, s and f say whether it succeeded, 1 to 5 rate it.",
        ),
      );
  };
  draft.listeners.add(drawList);
  const target = element("input", {
    type: "text",
    value: draft.target,
    "aria-label": "Folder of the new dataset",
    size: 60,
  });
  const bar = element("progress", { max: 1, value: 0, hidden: "" });
  const stop = element("button", { hidden: "" }, "Cancel");
  const said = element("div", { role: "status" });
  if (draft.trouble) said.append(problem(draft.trouble));
  const run = async (fields) => {
    said.replaceChildren();
    for (const each of buttons) each.disabled = true;
    try {
      let job = await draft.render(fields);
      bar.hidden = false;
      stop.hidden = !job.cancels;
      stop.onclick = () => send("POST", `/api/jobs/${job.id}/cancel`, {});
      while (job.state === "running") {
        bar.value = job.share;
        await new Promise((resolve) => setTimeout(resolve, 200));
        job = await getJson(`/api/jobs/${job.id}`);
      }
      stop.hidden = true;
      if (job.state === "cancelled") {
        said.append("Cancelled: nothing is at the target. The same again goes on from there.");
        throw null;
      }
      if (job.state === "failed")
        throw Object.assign(new Error(job.result.message), { report: job.result });
      bar.value = 1;
      said.append(
        `${count(job.result.episodes, "episode")}, ${count(job.result.frames, "frame")} in ${job.result.path}`,
      );
      for (const line of job.result.dropped) said.append(element("div", { class: "dim" }, line));
      if (fields.in_place) {
        draft.forget();
        location.reload();
      }
    } catch (error) {
      if (error) said.append(problem(error));
    }
    stop.hidden = true;
    for (const each of buttons) each.disabled = false;
  };
  const file = element("input", {
    type: "file",
    accept: ".json,.csv,.parquet",
    "aria-label": "A file of labels",
  });
  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    said.replaceChildren();
    try {
      said.append(
        `Labels of ${count(await draft.take(file.files[0]), "episode")} taken from ${file.files[0].name}; u undoes that.`,
      );
    } catch (error) {
      said.append(problem(error));
    }
    file.value = "";
  });
  const buttons = [
    element("button", { onclick: () => run({ target: target.value }) }, "Write a new dataset"),
  ];
  if (isLance)
    buttons.push(
      element(
        "button",
        { onclick: () => run({ in_place: true }) },
        "Change this dataset: a new version",
      ),
    );
  const command = element("code", {});
  const quoted = (text) =>
    /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const show = () => {
    command.textContent = `demoreel cut apply cutlist.json ${quoted(target.value)}`;
  };
  target.addEventListener("input", show);
  show();
  const dialog = element(
    "dialog",
    { class: "wide" },
    element("h2", {}, "Changes"),
    list,
    draft.readOnly
      ? element("p", { class: "dim" }, "This viewer is read-only.")
      : element("div", { class: "tools" }, target, ...buttons),
    element("div", { class: "progress" }, bar, stop),
    said,
    element(
      "p",
      { class: "dim" },
      element(
        "a",
        { href: `/api/d/${draft.id}/cutlist`, download: "cutlist.json" },
        "the cut list as a file",
      ),
      "; in the shell: ",
      command,
    ),
    element(
      "p",
      { class: "dim" },
      element(
        "a",
        { href: `/api/d/${draft.id}/annotations`, download: "lerobot_annotations.json" },
        "the annotations as a file",
      ),
      draft.readOnly
        ? null
        : element(
            "label",
            {},
            "; labels of a file (annotations; CSV or parquet with episode_index and success, score, flag or task): ",
            file,
          ),
    ),
    element("form", { method: "dialog" }, element("button", {}, "Close")),
  );
  drawList();
  document.body.append(dialog);
  dialog.addEventListener("close", () => {
    draft.listeners.delete(drawList);
    dialog.remove();
  });
  dialog.showModal();
}
