// Two datasets side by side: what they say of themselves, and how their episodes are distributed.
import { short } from "./plots.js";
import { count, duration, element, getJson, problem, setKeys, setPath } from "./tools.js";

const COLOURS = ["#56b4e9", "#e69f00"];

export async function showSide(main, ids, signal) {
  const infos = await Promise.all(ids.map((id) => getJson(`/api/d/${id}`, signal)));
  setPath([["datasets", "#/"], [infos.map((info) => info.name).join(" beside ")]]);
  const facts = element("table", { class: "facts" });
  const plots = element("div", { class: "shared" });
  const bar = element("progress", { max: 1, value: 0, "aria-label": "Episodes measured" });
  main.append(
    element(
      "div",
      { class: "side-by-side" },
      facts,
      element("div", {}, element("h3", {}, "distributions, as shares of the episodes"), bar, plots),
    ),
  );

  const dot = (place) => {
    const made = element("i", { class: "dot" });
    made.style.background = COLOURS[place];
    return made;
  };
  const row = (name, texts) =>
    facts.append(
      element(
        "tr",
        { class: texts[0] === texts[1] ? "" : "differs" },
        element("th", { scope: "row" }, name),
        ...texts.map((text) => element("td", {}, text ?? "absent")),
        element(
          "td",
          { class: "dim", title: texts[0] === texts[1] ? "the same" : "differs" },
          texts[0] === texts[1] ? "" : "≠",
        ),
      ),
    );
  facts.append(
    element(
      "tr",
      {},
      element("th", {}),
      ...infos.map((info, place) =>
        element(
          "th",
          { scope: "col" },
          dot(place),
          element("a", { href: `#/d/${info.id}` }, info.name),
        ),
      ),
      element("th", {}),
    ),
  );
  row(
    "layout",
    infos.map((info) => info.layout),
  );
  row(
    "robot",
    infos.map((info) => String(info.robot ?? "")),
  );
  row(
    "episodes",
    infos.map((info) => count(info.episodes, "episode")),
  );
  row(
    "length",
    infos.map((info) => duration(info.frames / info.fps)),
  );
  row(
    "frames a second",
    infos.map((info) => String(info.fps)),
  );
  row(
    "tasks",
    infos.map((info) => String(info.tasks)),
  );
  for (const key of new Set(infos.flatMap((info) => Object.keys(info.features)))) {
    row(
      key,
      infos.map((info) => {
        const feature = info.features[key];
        return (
          feature &&
          `${feature.dtype} (${feature.shape.join(", ")})${feature.names ? ` ${feature.names.join(", ").slice(0, 60)}` : ""}`
        );
      }),
    );
  }

  let left = false;
  async function watch() {
    try {
      while (!left) {
        const answers = await Promise.all(ids.map((id) => getJson(`/api/d/${id}/measures`)));
        if (left) return;
        const done = Math.min(
          ...answers.map((answer) => (answer.of ? answer.done / answer.of : 1)),
        );
        bar.value = done;
        bar.style.visibility = done < 1 ? "" : "hidden";
        draw(answers.map((answer) => new Map(answer.plots.map((plot) => [plot.key, plot]))));
        if (done === 1) return;
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
    } catch (error) {
      plots.append(problem(error));
    }
  }
  function draw(pair) {
    plots.replaceChildren();
    for (const key of new Set(pair.flatMap((each) => [...each.keys()]))) {
      const both = pair.map((each) => each.get(key)),
        there = both.filter(Boolean);
      const low = Math.min(...there.map((plot) => plot.low)),
        high = Math.max(...there.map((plot) => plot.high));
      const canvas = element("canvas", {
        width: 560,
        height: 96,
        role: "img",
        "aria-label": `${there[0].title}: ${both.map((plot) => (plot ? `${short(plot.least)} to ${short(plot.most)}` : "absent")).join("; ")}`,
      });
      const context = canvas.getContext("2d"),
        x = (value) => ((value - low) / (high - low || 1)) * canvas.width;
      both.forEach((plot, place) => {
        if (!plot) return;
        const sum = plot.counts.reduce((total, number) => total + number, 0) || 1,
          most = Math.max(...plot.counts) / sum || 1;
        const width = (plot.high - plot.low) / plot.counts.length;
        context.beginPath();
        context.moveTo(x(plot.low), canvas.height);
        plot.counts.forEach((number, bin) => {
          const y = canvas.height - 2 - (number / sum / most) * (canvas.height - 8);
          context.lineTo(x(plot.low + bin * width), y);
          context.lineTo(x(plot.low + (bin + 1) * width) + (width ? 0 : 6), y);
        });
        context.lineTo(x(plot.high) + (width ? 0 : 6), canvas.height);
        Object.assign(context, {
          strokeStyle: COLOURS[place],
          fillStyle: `${COLOURS[place]}40`,
          lineWidth: 2,
        });
        context.setLineDash(place ? [6, 4] : []);
        context.fill();
        context.stroke();
      });
      plots.append(
        element(
          "div",
          { class: "plot", "data-measure": key },
          element("h3", {}, there[0].title),
          canvas,
          element(
            "div",
            { class: "ends" },
            element("span", {}, short(low)),
            element("span", {}, short(high)),
          ),
        ),
      );
    }
  }
  setKeys([
    {
      keys: ["1"],
      shown: "1",
      does: `open ${infos[0].name}`,
      run: () => {
        location.hash = `#/d/${ids[0]}`;
      },
    },
    {
      keys: ["2"],
      shown: "2",
      does: `open ${infos[1].name}`,
      run: () => {
        location.hash = `#/d/${ids[1]}`;
      },
    },
    { keys: ["v"], shown: "v", does: "compare their first episodes", run: compareFirst },
    {
      keys: ["Escape"],
      shown: "Esc",
      does: "all datasets",
      run: () => {
        location.hash = "#/?list=1";
      },
    },
  ]);
  async function compareFirst() {
    let firsts;
    try {
      firsts = await Promise.all(ids.map((id) => getJson(`/api/d/${id}/episodes?n=1`)));
    } catch (error) {
      plots.append(problem(error));
      return;
    }
    location.hash = `#/compare?${new URLSearchParams(ids.map((id, place) => ["e", `${id}:${firsts[place].rows[0].index}`]))}`;
  }
  document
    .getElementById("facts")
    .append(
      element(
        "button",
        { onclick: compareFirst, title: "Compare their first episodes (v)" },
        "compare episodes",
      ),
    );
  watch();
  return () => {
    left = true;
  };
}
