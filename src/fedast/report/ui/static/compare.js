// Runs side by side: means and bands over groups, times to target, what differs.
import { h, replace, segments, select, card, empty } from "./dom.js";
import { state, get } from "./state.js";
import { chart, bars, legend } from "./charts.js";
import { looks, algorithmName } from "./palette.js";
import { number, metric, plain, plural } from "./format.js";

const MOST = 200;
const NONE = "–";
const kept = { by: "algorithm", and: "", axis: "t", value: "value", band: "range" };

export function compareView({ query }) {
  const choice = { ...kept };
  let fixed = null;
  let hidden = new Set();
  let found = null;
  let keys = [];
  let charts = new Map();
  let gone = false;
  let style = [];

  const controls = h("div", { class: "toolbar" });
  const about = h("p", { class: "crumbs" });
  const names = h("div", { class: "legend-row" });
  const body = h("div", {}, h("p", { class: "loading" }, "Comparing…"));
  const element = h("div", {}, about, controls, names, body);

  function take(parameters) {
    fixed = parameters.get("runs")?.split(",") ?? null;
    for (const key of ["by", "and", "axis", "value", "band"]) if (parameters.has(key)) choice[key] = parameters.get(key);
  }

  function ids() {
    if (fixed) return fixed;
    if (state.selected.size) return [...state.selected];
    return [...state.runs.values()].filter((run) => run.status !== "broken").sort((a, b) => b.changed - a.changed).slice(0, MOST)
      .sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true })).map((run) => run.id);
  }

  function remember() {
    Object.assign(kept, choice);
    const parameters = new URLSearchParams(choice);
    if (fixed) parameters.set("runs", fixed.join(","));
    history.replaceState(null, "", `#/compare?${parameters}`);
  }

  async function load() {
    const runs = ids();
    if (!runs.length) {
      found = null;
      replace(body, empty("Nothing to compare", "There is no run that can be read yet."));
      return;
    }
    const by = [choice.by, choice.and].filter(Boolean).join(",");
    const [answer, names] = await Promise.all([
      get("compare", { runs: runs.join(","), by, axis: choice.axis, value: choice.value, band: choice.band }),
      get("keys"),
    ]);
    if (gone) return;
    found = answer;
    keys = Object.keys(names).sort();
    draw();
  }

  const again = () => { remember(); drawnControls = ""; load().catch(fail); };
  const fail = (error) => replace(body, empty("The runs cannot be compared", error.message));

  let drawnControls = "";
  function drawControls() {
    const now = JSON.stringify([keys, choice]);
    if (now === drawnControls) return;
    drawnControls = now;
    const set = (name) => (value) => { choice[name] = value; again(); };
    const groups = [{ value: "", text: "each run by itself" }, { value: "algorithm", text: "algorithm" }, ...keys.filter((key) => key !== "algorithm.name").map((value) => ({ value, text: value }))];
    replace(controls,
      select("Group by", groups, choice.by, set("by")),
      choice.by ? select("and by", [{ value: "", text: "nothing else" }, ...groups.slice(1).filter((group) => group.value !== choice.by)], choice.and, set("and")) : null,
      segments("Axis", [{ value: "t", text: "Simulated time" }, { value: "w", text: "Real time" }, { value: "round", text: "Rounds" }], choice.axis, set("axis")),
      segments("Measure", [{ value: "value", text: "Metric" }, { value: "loss", text: "Loss" }], choice.value, set("value")),
      choice.by ? segments("Band", [{ value: "range", text: "Min–max" }, { value: "deviation", text: "± std" }], choice.band, set("band")) : null);
  }

  const label = (group) => (choice.by === "algorithm" && group.algorithm ? group.label.replace(group.algorithm, algorithmName(group.algorithm)) : group.label);

  function draw() {
    drawControls();
    style = looks(found.groups);
    const count = found.groups.reduce((sum, group) => sum + group.runs.length, 0);
    replace(about, `${plural(count, "run")} in ${plural(found.groups.length, "group")}`,
      !fixed && !state.selected.size ? h("span", { class: "dim" }, state.runs.size > MOST ? ` · the latest ${MOST} runs; choose in the list which to compare` : " · all runs; choose some in the list to compare only these") : null);
    replace(names, legend(found.groups.map((group, index) => ({ label: group.label, name: `${label(group)} (${group.runs.length})`, ...style[index] })), hidden,
      (next) => { hidden = next; for (const each of charts.values()) each.setHidden(hidden); }));
    const wanted = found.tasks.map((task) => task.name);
    if (wanted.join("\n") !== [...charts.keys()].join("\n") || !body.querySelector(".cards")) {
      for (const each of charts.values()) each.destroy();
      charts = new Map(wanted.map((name) => [name, chart({ lines: [], xLabel: "", yLabel: "" }, { label: `Learning curves of ${name}` })]));
      replace(body, h("div", { class: found.tasks.length % 3 ? "cards" : "cards three" },
        found.tasks.map((task) => card(task.name, { wide: found.tasks.length === 1 }, charts.get(task.name).element)),
        h("section", { class: "card wide", id: "times" }), h("section", { class: "card wide", id: "differences" })));
    }
    for (const task of found.tasks) charts.get(task.name).update(lines(task));
    for (const each of charts.values()) each.setHidden(hidden);
    drawTimes();
    drawDifferences();
  }

  function lines(task) {
    const all = [];
    const bands = [];
    found.groups.forEach((group, index) => {
      const curve = task.groups[index];
      if (!curve) return;
      const { color, dash } = style[index];
      if (curve.low) {
        const edge = { group: group.label, quiet: true, x: task.x, width: 0, color, gaps: true };
        all.push({ ...edge, label: "high", y: curve.high }, { ...edge, label: "low", y: curve.low });
        bands.push({ high: all.length - 2, low: all.length - 1, color });
      }
      all.push({ label: label(group), group: group.label, x: task.x, y: curve.mean, color, dash, gaps: true, width: found.groups.length > 20 ? 1.2 : 2 });
    });
    return {
      height: found.tasks.length === 1 ? 360 : 280, lines: all, bands,
      xLabel: { t: "Simulated time", w: "Real time in seconds", round: "Rounds" }[choice.axis],
      yLabel: choice.value === "loss" ? "loss" : task.metric,
      nothing: choice.axis === "w" ? "These records have no real time" : "No evaluation yet",
      targets: task.target === null || choice.value === "loss" ? [] : [{ y: task.target, color: getComputedStyle(document.documentElement).getPropertyValue("--dim").trim() }],
    };
  }

  function drawTimes() {
    const place = body.querySelector("#times");
    const targets = found.tasks.filter((task) => task.target !== null || task.times.some((time) => time.reached));
    if (!targets.length) { place.hidden = true; return; }
    place.hidden = false;
    const rows = [...targets.map((task) => [task.name, task.times]), ...(targets.length > 1 ? [["all tasks", found.all]] : [])];
    const most = Math.max(...rows.flatMap(([, times]) => times.map((time) => (time.mean ?? 0) + (time.deviation ?? 0))));
    replace(place,
      h("header", {}, h("h2", {}, "Time to target")),
      h("p", { class: "note" }, "Simulated time, mean over the runs of a group that reached it; whiskers are one standard deviation. The number says how many did."),
      h("div", { class: "bar-groups" }, rows.map(([name, times]) => h("div", {}, h("h3", {}, name),
        bars(found.groups.map((group, index) => ({ time: times[index], group, index })).slice(0, 60).map(({ time, group, index }) => ({
          label: label(group), ...style[index], swatch: true, value: time.mean, deviation: time.deviation,
          text: time.mean === null ? `0 of ${time.runs} reached it` : `${number(time.mean)}${time.deviation ? ` ± ${number(time.deviation, 2)}` : ""} (${time.reached} of ${time.runs})`,
        })), { most })))),
      h("h3", {}, "Latest value"),
      h("div", { class: "scroll" }, h("table", { class: "small" },
        h("thead", {}, h("tr", {}, h("th", {}, "Group"), found.tasks.map((task) => h("th", { class: "right" }, `${task.name}: ${task.metric}`)))),
        h("tbody", {}, found.groups.slice(0, 100).map((group, index) => h("tr", {}, h("td", {}, label(group)),
          found.tasks.map((task) => h("td", { class: "right" }, task.finals[index].mean === null ? NONE : `${metric(task.finals[index].mean)}${task.finals[index].deviation ? ` ± ${number(task.finals[index].deviation, 2)}` : ""}`))))))));
  }

  function drawDifferences() {
    const place = body.querySelector("#differences");
    const rows = Object.entries(found.differences);
    const shown = found.groups.slice(0, 12);
    replace(place,
      h("header", {}, h("h2", {}, "Differences in configuration")),
      found.groups.length > shown.length ? h("p", { class: "note" }, `Of the first ${shown.length} of ${found.groups.length} groups.`) : null,
      rows.length ? h("div", { class: "scroll tall" }, h("table", { class: "small config" },
        h("thead", {}, h("tr", {}, h("th", {}, "Key"), shown.map((group) => h("th", {}, label(group))))),
        h("tbody", {}, rows.map(([key, values]) => h("tr", {}, h("th", { scope: "row" }, key), shown.map((_, index) => h("td", {}, plain(values[index]))))))))
        : h("p", { class: "nothing" }, found.groups.length > 1 ? "None" : "There is only one group"));
  }

  take(query);
  load().catch(fail);
  let due = null;
  return {
    element,
    title: () => "Compare",
    navigate: (parameters) => { take(parameters); again(); },
    update: (changed) => {
      const mine = new Set(ids());
      if (![...changed].some((id) => mine.has(id))) return;
      due ??= setTimeout(() => { due = null; load().catch(fail); }, 600);
    },
    restyle: () => { if (found) { draw(); for (const each of charts.values()) each.restyle(); } },
    destroy: () => { gone = true; clearTimeout(due); for (const each of charts.values()) each.destroy(); },
  };
}
