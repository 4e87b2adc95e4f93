// One run: curves, allocation, buffers, staleness, clients, time, configuration.
import { h, replace, segments, card, empty } from "./dom.js";
import { state, get } from "./state.js";
import { chart, bars, legend, smooth, swatch } from "./charts.js";
import { look, algorithmName } from "./palette.js";
import { number, metric, percent, seconds, ago, plural } from "./format.js";
import { status } from "./runs.js";
import { clientCards } from "./clients.js";
import { configurationCard } from "./configuration.js";

const kept = { axis: "t", value: "value" };

export function runView({ id }) {
  const element = h("div", {}, h("p", { class: "loading" }, "Loading…"));
  let run = null;
  let parts = null;
  let hidden = new Set();
  let gone = false;

  async function load() {
    if (gone) return;
    try {
      run = await get(`run/${encodeURIComponent(id)}`);
    } catch (error) {
      if (!parts) replace(element, empty("This run cannot be shown", error.message));
      return;
    }
    if (gone) return;
    if (run.status === "broken") { replace(element, empty("This record is broken", run.why)); parts = null; return; }
    if (!parts) { parts = build(); replace(element, parts.elements); }
    draw();
  }

  function build() {
    const charts = {
      curve: [], requests: chart(blank("requests")), flight: chart(blank("in flight")), buffers: chart(blank("buffered")),
      staleness: chart(blank("staleness")), over: chart(blank("staleness")), throughput: chart(blank("rate")),
    };
    const header = h("div", { class: "run-header" });
    const controls = h("div", { class: "toolbar" });
    const note = h("p", { class: "banner", hidden: true });
    const curves = h("div");
    const times = h("div");
    const spent = h("div");
    const clients = clientCards();
    const configuration = configurationCard(run);
    const about = h("div");
    return {
      charts, header, controls, note, curves, times, spent, clients, configuration, about,
      elements: [
        h("p", { class: "crumbs" }, h("a", { href: "#/runs" }, "Runs"), " / ", run.name),
        header, note, controls,
        h("div", { class: "cards" },
          card("Learning curves", { wide: true, note: "Dashed lines across are targets; dotted lines mark where a task finished, ticks at the bottom reallocations." }, curves),
          card("Time to target", { note: `${clock()} at which the metric of a task was first at its target.` }, times),
          card("Requests per task", { note: "How many requests each task may have in flight: the allocation." }, charts.requests.element),
          card("Requests in flight", { note: "Sent, and not yet answered." }, charts.flight.element),
          card("Buffers", { note: "Updates that wait to be aggregated, mean over short stretches; dashed: the size at which they are." }, charts.buffers.element),
          card("Staleness", { note: "Of the updates that counted, in rounds of their task." }, charts.staleness.element, about),
          card("Staleness over time", { note: "Mean over short stretches." }, charts.over.element),
          clients.elements,
          card("Throughput", { note: "Updates per second of real time, or per unit of simulated time." }, charts.throughput.element),
          card("Where the time goes", { note: "Real time by what it was spent on." }, spent),
          configuration.element),
      ],
    };
  }

  const blank = (yLabel) => ({ lines: [], xLabel: "", yLabel });
  const hasReal = () => Object.values(run.curves).some((curve) => curve.w.some((w) => w !== null)) || run.samples.w.some((w) => w !== null);
  const clock = () => (run.clock === "seconds" ? "Time in seconds" : "Simulated time");
  const along = () => (kept.axis === "w" && hasReal() ? "w" : "t");
  const xLabel = () => (along() === "w" ? "Real time in seconds" : clock());

  function draw() {
    drawHeader();
    drawControls();
    const names = run.tasks.map((task) => task.name);
    const style = Object.fromEntries(names.map((name, index) => [name, look(index)]));
    drawCurves(style);
    drawTimes(style);
    drawSamples(style);
    drawStaleness(style);
    drawThroughput();
    drawSpent();
    parts.clients.draw(run.load);
    parts.configuration.draw(run);
    for (const each of all()) each.setHidden(hidden);
  }

  const all = () => [...parts.charts.curve, ...["requests", "flight", "buffers", "staleness", "over", "throughput"].map((name) => parts.charts[name])];

  function drawHeader() {
    const facts = [
      ["Algorithm", algorithmName(run.algorithm)], ["Seed", run.seed], ["Clients", number(run.clients)],
      [clock(), number(run.t)], ["Updates", number(run.updates)],
      ["Real time", seconds(run.seconds)], ["Updates/s", number(run.rate, 3)],
      ["Changed", ago(run.changed)],
    ];
    replace(parts.header,
      h("h1", {}, run.name, " ", status(run)),
      h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value ?? "–")))));
    parts.note.hidden = !run.note;
    parts.note.textContent = run.note ?? "";
  }

  let drawnControls = "";
  function drawControls() {
    const real = hasReal();
    const names = run.tasks.map((task) => task.name);
    const now = JSON.stringify([real, names, kept, document.documentElement.dataset.theme]);
    if (now === drawnControls) return;
    drawnControls = now;
    replace(parts.controls,
      segments("Time axis", [
        { value: "t", text: run.clock === "seconds" ? "Server's clock" : "Simulated time" },
        { value: "w", text: "Real time", disabled: !real, title: real ? null : "This record has no real time" },
        { value: "round", text: "Rounds" },
      ], kept.axis === "w" && !real ? "t" : kept.axis, (value) => { kept.axis = value; draw(); }),
      segments("Measure", [{ value: "value", text: "Metric" }, { value: "loss", text: "Loss" }], kept.value,
        (value) => { kept.value = value; draw(); }),
      h("span", { class: "grow" }),
      legend(names.map((name, index) => ({ label: name, ...look(index) })), hidden, (next) => { hidden = next; for (const each of all()) each.setHidden(hidden); }));
  }

  function marksFor(style) {
    const at = along() === "w" ? 1 : 0;
    const place = (rows) => rows.filter((row) => row[at] !== null);
    return {
      marks: [
        ...place(run.marks.finished).map((row) => ({ x: row[at], color: style[row[2]]?.color, text: `${row[2]}: ${row[3]}` })),
        ...place(run.marks.others).filter((row) => row[2] !== "ended").map((row) => ({ x: row[at], text: row[2] })),
      ],
      ticks: place(run.marks.reallocations).map((row) => ({ x: row[at] })),
    };
  }

  function drawCurves(style) {
    const axis = kept.axis === "round" ? "round" : along();
    const kinds = [...new Set(run.tasks.map((task) => (kept.value === "loss" ? "loss" : task.metric)))];
    const groups = kinds.map((kind) => run.tasks.filter((task) => kept.value === "loss" || task.metric === kind));
    if (parts.charts.curve.length !== kinds.length) {
      parts.charts.curve.forEach((old) => old.destroy());
      parts.charts.curve = kinds.map((kind) => chart({ ...blank(kind), height: 320 }, { label: `Learning curves: ${kind}` }));
      replace(parts.curves, parts.charts.curve.map((each) => each.element));
    }
    groups.forEach((tasks, index) => {
      const lines = tasks.filter((task) => run.curves[task.name]).map((task) => {
        const curve = run.curves[task.name];
        return { label: task.name, x: curve[axis], y: curve[kept.value], ...style[task.name] };
      });
      parts.charts.curve[index].update({
        height: kinds.length > 1 ? 260 : 340, lines,
        xLabel: axis === "round" ? "Rounds of the task" : xLabel(), yLabel: kinds[index],
        nothing: "No evaluation yet",
        targets: kept.value === "loss" ? [] : tasks.filter((task) => task.target !== null && !hidden.has(task.name)).map((task) => ({ y: task.target, color: style[task.name].color })),
        ...(axis === "round" ? {} : marksFor(style)),
      });
    });
  }

  function drawTimes(style) {
    const wanted = run.tasks.filter((task) => task.target !== null && task.target !== undefined);
    replace(parts.times, wanted.length ? bars(wanted.map((task) => ({
      label: task.name, ...style[task.name], swatch: true, value: task.reached ?? null,
      text: task.reached !== null && task.reached !== undefined ? number(task.reached) : `not yet: ${metric(task.value)} of ${metric(task.target)}`,
    }))) : h("p", { class: "nothing" }, "No task has a target"),
    h("div", { class: "scroll" }, h("table", { class: "small" },
      h("thead", {}, h("tr", {}, ["Task", "Latest", "Target", "Rounds", "Updates", "Ended"].map((text, i) => h("th", { class: i && i < 5 ? "right" : null }, text)))),
      h("tbody", {}, run.tasks.map((task) => h("tr", {}, h("td", {}, task.name),
        [metric(task.value), metric(task.target), number(task.round), number(task.updates)].map((text) => h("td", { class: "right" }, text)),
        h("td", {}, task.finish ?? "–")))))));
  }

  function drawSamples(style) {
    const x = run.samples[along()];
    const line = (key, kind) => Object.entries(run.samples.tasks).map(([name, columns]) => ({ label: name, x, y: columns[key], kind, width: 1.6, ...style[name] }));
    const mean = (key) => Object.entries(run.samples.tasks).map(([name, columns]) => ({ label: name, ...smooth(x, columns[key]), width: 1.8, ...style[name] }));
    const steps = Object.entries(run.requests).map(([name, row]) => {
      const end = along() === "w" ? run.samples.w.at(-1) ?? run.seconds : run.t;
      const xs = [...row[along()]];
      const ys = [...row.requests];
      if (end !== null && end !== undefined && xs.length && end > xs.at(-1)) { xs.push(end); ys.push(ys.at(-1)); }
      return { label: name, x: xs, y: ys, kind: "step", ...style[name] };
    });
    const marks = marksFor(style);
    const common = { xLabel: xLabel(), yMin: 0, height: 230 };
    const fewer = { ...marks, marks: marks.marks.map((mark) => ({ ...mark, text: "" })) };
    parts.charts.requests.update({
      ...common, ...fewer, yLabel: "requests", lines: steps.length ? steps : line("requests", "step"),
      nothing: "This algorithm does not allocate requests to tasks, or the record does not say",
    });
    parts.charts.flight.update({ ...common, ...fewer, yLabel: "requests", lines: line("in_flight"), nothing: without("requests in flight") });
    const limits = Object.entries(run.samples.tasks).flatMap(([name, columns]) => (columns.buffer.some((b) => b !== null)
      ? [{ label: `${name}: size`, group: name, quiet: true, x, y: columns.buffer, kind: "step", width: 1, color: style[name]?.color ?? "#888888", dash: [3, 3] }] : []));
    parts.charts.buffers.update({ ...common, ...fewer, yLabel: "updates", lines: [...mean("buffered"), ...limits], nothing: without("buffers") });
    parts.charts.over.update({ ...common, ...fewer, yLabel: "rounds, mean", lines: mean("staleness"), nothing: without("staleness over time") });
  }

  const without = (what) => (run.status === "running" ? "Nothing recorded yet" : `This record does not have ${what}; runs of this version do`);

  function drawStaleness(style) {
    const found = Object.entries(run.staleness).filter(([, bins]) => bins.total);
    parts.charts.staleness.update({
      height: 230, whole: true, xLabel: "staleness in rounds", yLabel: "% of updates", yMin: 0, nothing: without("a staleness distribution"),
      lines: found.map(([name, bins]) => ({
        label: name, kind: "step", fill: 0.1, width: 1.6, ...style[name],
        x: [...bins.from, bins.from.at(-1) + bins.width], y: [...bins.count.map((count) => (100 * count) / bins.total), 0],
      })),
    });
    replace(parts.about, found.length ? h("table", { class: "small" },
      h("thead", {}, h("tr", {}, ["Task", "Mean", "90 % up to", "Most"].map((text, i) => h("th", { class: i ? "right" : null }, text)))),
      h("tbody", {}, found.map(([name, bins]) => h("tr", {}, h("td", {}, swatch(style[name] ?? {}), " ", name),
        [bins.mean, bins.p90, bins.max].map((value) => h("td", { class: "right" }, number(value, 3))))))) : null);
  }

  function drawThroughput() {
    const axis = run.throughput[along()] ? along() : "t";
    const row = run.throughput[axis];
    parts.charts.throughput.update({
      height: 230, xLabel: axis === "w" ? "Real time in seconds" : clock(), yLabel: axis === "w" || run.clock === "seconds" ? "updates per second" : "updates per unit of time", yMin: 0,
      nothing: without("throughput"),
      lines: row ? [{ label: "updates", x: row.x, y: row.rate, fill: 0.12, ...look(0) }] : [],
    });
  }

  function drawSpent() {
    const names = { train: "Training", evaluate: "Evaluation", aggregate: "Aggregation", other: "Everything else" };
    const rows = Object.entries(run.spent);
    const total = rows.reduce((sum, [, value]) => sum + (value ?? 0), 0);
    replace(parts.spent, total ? [
      bars(rows.map(([name, value], index) => ({
        label: names[name] ?? name, swatch: true, kind: "bars", ...look(index), value, text: `${percent(value / total)} · ${seconds(value)}`,
      }))),
      run.rate ? h("p", { class: "axis-note" }, `${plural(run.updates ?? 0, "update")} in ${seconds(run.seconds)}: ${seconds(run.seconds / run.updates)} for one`) : null,
    ] : h("p", { class: "nothing" }, run.seconds ? `${seconds(run.seconds)} in all; this record does not say on what` : without("real time")));
  }

  load();
  let due = null;
  return {
    element,
    title: () => run?.name ?? "Run",
    update: (changed) => {
      if (changed.has(id) || (!parts && state.runs.has(id))) due ??= setTimeout(() => { due = null; load(); }, 250);
    },
    restyle: () => { if (parts) { drawnControls = ""; draw(); for (const each of all()) each.restyle(); parts.clients.restyle(); } },
    destroy: () => {
      gone = true;
      clearTimeout(due);
      if (parts) { for (const each of all()) each.destroy(); parts.clients.destroy(); }
    },
  };
}
