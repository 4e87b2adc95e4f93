// A sweep: its trials as a table and as parallel coordinates.
import { h, replace, card, empty } from "./dom.js";
import { get, state } from "./state.js";
import { isDark } from "./palette.js";
import { number, plain, plural, seconds } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 330;
const MARGIN = { top: 34, bottom: 18, side: 80 };
const PILLS = { complete: "finished", running: "running", pruned: "stopped", missed: "interrupted", failed: "broken", invalid: "broken" };
// Dark blue to yellow, as cividis: in order also for the colour-blind.
const SCALE = [[0, 52, 110], [60, 77, 109], [124, 123, 120], [187, 174, 109], [253, 231, 55]];

function shade(part) {
  const at = Math.min(0.9999, Math.max(0, isDark() ? 1 - part : part)) * (SCALE.length - 1);
  const [low, high] = [SCALE[Math.floor(at)], SCALE[Math.floor(at) + 1]];
  return `rgb(${low.map((c, i) => Math.round(c + (high[i] - c) * (at % 1))).join(",")})`;
}

function s(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** Where a value is on its axis, from 0 (bottom) to 1, and what is written beside it. */
function axisOf(parameter, values) {
  if (parameter.choices) {
    const last = Math.max(1, parameter.choices.length - 1);
    return {
      name: parameter.name,
      at: (value) => Math.max(0, parameter.choices.findIndex((choice) => same(choice, value))) / last,
      ticks: parameter.choices.map((choice, index) => [parameter.choices.length > 1 ? index / last : 0, plain(choice)]),
    };
  }
  const numbers = values.filter((value) => typeof value === "number");
  const low = parameter.low ?? Math.min(...numbers);
  const high = parameter.high ?? Math.max(...numbers);
  const scale = parameter.log ? Math.log : (value) => value;
  const at = (value) => (high > low ? (scale(value) - scale(low)) / (scale(high) - scale(low)) : 0.5);
  const back = parameter.log ? (part) => low * (high / low) ** part : (part) => low + part * (high - low);
  return { name: parameter.name, at, ticks: [0, 0.25, 0.5, 0.75, 1].map((part) => [part, number(back(part), 3)]) };
}

export function sweepView({ id }) {
  const element = h("div", {}, h("p", { class: "loading" }, "Loading…"));
  const lines = h("div", { class: "scroll" });
  const table = h("div", { class: "scroll tall" });
  const order = { key: "value", down: null };
  let found = null;
  let built = false;
  let gone = false;
  let chosen = null;

  async function load() {
    try {
      found = await get(`sweep/${encodeURIComponent(id)}`);
    } catch (error) {
      replace(element, empty("This sweep cannot be shown", error.message));
      return;
    }
    if (gone) return;
    if (found.broken) { built = false; replace(element, empty("This sweep is broken", found.broken)); return; }
    const head = element.querySelector(".run-header") ?? h("div", { class: "run-header" });
    if (!built) {
      built = true;
      replace(element, head, h("div", { class: "cards" },
        card("Trials in parallel", { wide: true, note: "A line is a trial: its value of each parameter, and what came of it. The thick line is the best, colours go by rank; thin grey lines have no value." }, lines),
        card("Trials", { wide: true }, table)));
    }
    const { objective } = found;
    const done = found.trials.filter((trial) => trial.state !== "running").length;
    replace(head, h("h1", {}, found.title || found.name),
      h("dl", { class: "facts" }, [
        ["Trials", `${done} of ${found.most ?? found.trials.length}`],
        ["Objective", `${objective.direction} ${objective.value}${objective.task ? ` of ${objective.task}` : ""}`],
        ["Best", number(found.best)],
      ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
    draw();
  }

  const better = (a, b) => (found.objective.direction === "maximize" ? b - a : a - b);
  const ranked = () => found.trials.filter((trial) => trial.value !== null).sort((a, b) => better(a.value, b.value));

  function draw() { drawLines(); drawTable(); }

  function drawLines() {
    const axes = [
      ...found.parameters.map((parameter) => ({ ...axisOf(parameter, found.trials.map((t) => t.parameters[parameter.name])), get: (t) => t.parameters[parameter.name] })),
    ];
    const ranks = ranked();
    if (ranks.length) axes.push({ ...axisOf({ name: found.objective.value, low: Math.min(...ranks.map((t) => t.value)), high: Math.max(...ranks.map((t) => t.value)) }, []), get: (t) => t.value });
    if (axes.length < 2 || !found.trials.length) { replace(lines, h("p", { class: "nothing" }, "No trial has ended yet")); return; }
    const width = Math.max(lines.clientWidth || 900, 150 * axes.length);
    const x = (index) => MARGIN.side + (index * (width - 2 * MARGIN.side)) / (axes.length - 1);
    const y = (part) => HEIGHT - MARGIN.bottom - part * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const picture = s("svg", { width, height: HEIGHT, class: "parallel", role: "img", "aria-label": "Trials in parallel coordinates" });
    const place = (trial) => axes.filter((axis) => axis.get(trial) !== null && axis.get(trial) !== undefined)
      .map((axis) => `${x(axes.indexOf(axis)).toFixed(1)},${y(axis.at(axis.get(trial))).toFixed(1)}`).join(" ");
    const without = found.trials.filter((trial) => trial.value === null);
    for (const trial of without) picture.append(s("polyline", { points: place(trial), class: "no-value" }));
    for (const trial of [...ranks].reverse()) {
      const rank = ranks.indexOf(trial);
      const line = s("polyline", {
        points: place(trial), stroke: shade(ranks.length > 1 ? rank / (ranks.length - 1) : 0),
        class: `trial${rank === 0 ? " best" : ""}${chosen === trial.trial ? " chosen" : ""}`,
      });
      line.append(s("title", {}, `trial ${trial.trial}: ${number(trial.value)}`));
      line.addEventListener("click", () => { chosen = trial.trial; draw(); table.querySelector(".chosen")?.scrollIntoView({ block: "nearest" }); });
      picture.append(line);
    }
    axes.forEach((axis, index) => {
      picture.append(s("line", { x1: x(index), x2: x(index), y1: y(0), y2: y(1), class: "axis" }));
      picture.append(s("text", { x: x(index), y: 16, class: "axis-name" }, axis.name));
      for (const [part, text] of axis.ticks) picture.append(s("text", { x: x(index) + 7, y: y(part) + 4, class: "axis-tick" }, text));
    });
    replace(lines, picture);
  }

  function drawTable() {
    const names = found.parameters.map((parameter) => parameter.name);
    const ranks = ranked().map((trial) => trial.trial);
    const columns = [
      { key: "trial", text: "Trial", get: (t) => t.trial }, { key: "state", text: "State", get: (t) => t.state },
      { key: "value", text: found.objective.value, get: (t) => t.value },
      ...names.map((name) => ({ key: `p ${name}`, text: name, get: (t) => t.parameters[name] })),
      { key: "seconds", text: "Real time", get: (t) => t.seconds },
    ];
    const column = columns.find(({ key }) => key === order.key) ?? columns[0];
    const down = order.down ?? found.objective.direction === "maximize";
    const rows = [...found.trials].sort((a, b) => {
      const [p, q] = [column.get(a), column.get(b)];
      if (p === null || p === undefined) return q === null || q === undefined ? a.trial - b.trial : 1;
      if (q === null || q === undefined) return -1;
      const ordered = typeof p === "number" && typeof q === "number" ? p - q : plain(p).localeCompare(plain(q), undefined, { numeric: true });
      return down ? -ordered : ordered;
    });
    replace(table, h("table", { class: "small" },
      h("thead", {}, h("tr", {}, columns.map(({ key, text }) => h("th", { "aria-sort": key === column.key ? (down ? "descending" : "ascending") : null },
        h("button", { type: "button", onclick: () => { order.down = key === order.key ? !down : false; order.key = key; drawTable(); } }, text, h("span", { class: "arrow" }, key === column.key ? (down ? "↓" : "↑") : "")))), h("th", {}, "Runs"))),
      h("tbody", {}, rows.map((trial) => h("tr", { class: trial.trial === chosen ? "chosen" : null },
        h("td", {}, trial.trial), h("td", {}, h("span", { class: `pill ${PILLS[trial.state] ?? "stopped"}`, title: trial.reason }, trial.state)),
        h("td", {}, trial.value === null ? (trial.bound === null ? "–" : `≥ ${number(trial.bound)}`) : h(ranks[0] === trial.trial ? "b" : "span", {}, number(trial.value))),
        names.map((name) => h("td", {}, plain(trial.parameters[name]))), h("td", {}, seconds(trial.seconds)),
        h("td", {}, trial.runs.length ? [h("a", { href: `#/run/${trial.runs[0]}` }, trial.runs.length > 1 ? "first" : "open"), trial.runs.length > 1 ? [" · ", h("a", { href: `#/compare?runs=${trial.runs.join(",")}&by=` }, `all ${trial.runs.length}`)] : null] : "–"))))));
  }

  load();
  let due = null;
  return {
    element,
    title: () => found?.title ?? "Sweep",
    update: () => { due ??= setTimeout(() => { due = null; if (state.sweeps.some((each) => each.id === id)) load(); }, 500); },
    restyle: () => { if (built) draw(); },
    destroy: () => { gone = true; clearTimeout(due); },
  };
}
