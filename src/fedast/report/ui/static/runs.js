// The list of runs: filter, sort, choose some to compare.
import { h, replace, select, empty } from "./dom.js";
import { state, get, column } from "./state.js";
import { algorithmName } from "./palette.js";
import { number, metric, seconds, ago, plural } from "./format.js";

const PAGE = 150;
const COLUMNS = [
  { key: "name", text: "Run" },
  { key: "status", text: "Status" },
  { key: "algorithm", text: "Algorithm" },
  { key: "seed", text: "Seed", right: true },
  { key: "tasks", text: "Tasks: latest metric", sort: false },
  { key: "t", text: "Time", right: true, title: "Simulated time; seconds of a federation" },
  { key: "updates", text: "Updates", right: true },
  { key: "rate", text: "Updates/s", right: true, title: "Of real time" },
  { key: "changed", text: "Changed", right: true },
];
const remembered = { text: "", algorithm: "", status: "", key: "", value: "", sort: "name", down: false };

export function status(run) {
  return h("span", { class: `pill ${run.status}` }, run.status);
}

export function taskChip(task) {
  const reached = task.reached !== null && task.reached !== undefined;
  const target = task.target === null || task.target === undefined ? "" : ` of ${metric(task.target)}`;
  return h("span", {
    class: reached ? "chip reached" : "chip",
    title: `${task.name}: ${task.metric} ${metric(task.value)}${target}${reached ? `, reached at ${number(task.reached)}` : ""}${task.finish ? `; ended: ${task.finish}` : ""}`,
  }, h("span", {}, task.name), h("b", {}, metric(task.value)), reached ? h("span", { class: "tick", "aria-label": "target reached" }, "✓") : null);
}

/** Text is looked for in name, algorithm and status; ``key=value`` in the configuration. */
async function matcher(text) {
  const tests = [];
  const names = text.includes("=") ? Object.keys(await get("keys")) : [];
  for (const word of text.toLowerCase().split(/\s+/).filter(Boolean)) {
    const at = word.indexOf("=");
    if (at > 0) {
      const key = word.slice(0, at);
      const wanted = word.slice(at + 1);
      if (["seed", "algorithm", "status", "name"].includes(key)) {
        tests.push((run) => String(run[key] ?? "").toLowerCase() === wanted || (key !== "seed" && String(run[key]).toLowerCase().includes(wanted)));
        continue;
      }
      const found = names.filter((name) => name.toLowerCase() === key || name.toLowerCase().endsWith(`.${key}`));
      const values = await Promise.all(found.slice(0, 40).map(column));
      tests.push((run) => values.some((of) => of[run.id] !== undefined && String(of[run.id]).toLowerCase() === wanted));
    } else {
      tests.push((run) => `${run.name} ${run.algorithm} ${algorithmName(run.algorithm)} ${run.status} ${run.tasks.map((t) => t.name).join(" ")}`.toLowerCase().includes(word));
    }
  }
  return (run) => tests.every((test) => test(run));
}

export function runsView({ query }) {
  const filter = { ...remembered };
  for (const key of ["text", "algorithm", "status", "key", "value"]) if (query.has(key)) filter[key] = query.get(key);
  let shown = PAGE;
  let visible = [];
  let ticket = 0;
  let keys = null;

  const search = h("input", {
    type: "search", placeholder: "Filter by words or key=value", "aria-label": "Filter runs",
    value: filter.text, oninput: () => { filter.text = search.value; shown = PAGE; draw(); },
  });
  const fields = h("div", { class: "fields" });
  const count = h("span", { class: "count", role: "status" });
  const compareLink = h("a", { class: "button primary", href: "#/compare" }, "Compare");
  const clearButton = h("button", { type: "button", class: "button", onclick: () => { state.selected.clear(); draw(); } }, "Clear choice");
  const all = h("input", {
    type: "checkbox", "aria-label": "Choose all runs that are shown",
    onchange: () => { for (const run of visible) if (run.status !== "broken") all.checked ? state.selected.add(run.id) : state.selected.delete(run.id); draw(); },
  });
  const body = h("tbody");
  const head = h("tr");
  const more = h("div", { class: "more" });
  const table = h("div", { class: "scroll" }, h("table", { class: "runs" }, h("thead", {}, head), body));
  const blank = h("div");
  const element = h("div", {},
    h("div", { class: "toolbar" }, search, fields, h("span", { class: "grow" }), count, clearButton, compareLink),
    table, more, blank);

  function drawHead() {
    replace(head, h("th", { class: "check" }, all), COLUMNS.map(({ key, text, right, sort, title }) => {
      const here = filter.sort === key;
      return h("th", { class: right ? `right c-${key}` : `c-${key}`, title, "aria-sort": here ? (filter.down ? "descending" : "ascending") : null },
        sort === false ? text : h("button", {
          type: "button",
          onclick: () => {
            filter.down = here ? !filter.down : ["changed", "updates", "rate"].includes(key);
            filter.sort = key;
            drawHead();
            draw();
          },
        }, text, h("span", { class: "arrow", "aria-hidden": "true" }, here ? (filter.down ? "↓" : "↑") : "")));
    }));
  }

  let drawnFields = "";
  async function drawFields() {
    const runs = [...state.runs.values()];
    const algorithms = [...new Set(runs.map((run) => run.algorithm).filter(Boolean))].sort();
    const statuses = [...new Set(runs.map((run) => run.status))].sort();
    keys ??= Object.keys(await get("keys")).sort();
    const values = filter.key ? [...new Set(Object.values(await column(filter.key)).map(String))].sort((a, b) => a.localeCompare(b, undefined, { numeric: true })) : [];
    const now = JSON.stringify([algorithms, statuses, keys, values, filter.algorithm, filter.status, filter.key, filter.value]);
    if (now === drawnFields) return;
    drawnFields = now;
    const any = { value: "", text: "any" };
    const set = (name) => (value) => { filter[name] = value; if (name === "key") filter.value = ""; shown = PAGE; drawFields(); draw(); };
    replace(fields,
      select("Algorithm", [any, ...algorithms.map((value) => ({ value, text: algorithmName(value) }))], filter.algorithm, set("algorithm")),
      select("Status", [any, ...statuses.map((value) => ({ value, text: value }))], filter.status, set("status")),
      keys.length ? select("Key", [any, ...keys.map((value) => ({ value, text: value }))], filter.key, set("key")) : null,
      filter.key ? select("Value", [any, ...values.map((value) => ({ value, text: value }))], filter.value, set("value")) : null);
  }

  function row(run) {
    const choose = h("input", {
      type: "checkbox", "aria-label": `Choose ${run.name}`, checked: state.selected.has(run.id), disabled: run.status === "broken",
      onchange: () => { choose.checked ? state.selected.add(run.id) : state.selected.delete(run.id); drawCount(); },
    });
    const broken = run.status === "broken";
    return h("tr", { class: broken ? "broken" : null, data: { id: run.id } },
      h("td", { class: "check" }, choose),
      h("td", { class: "c-name" }, broken ? run.name : h("a", { href: `#/run/${run.id}` }, run.name)),
      h("td", { class: "c-status" }, status(run)),
      broken
        ? h("td", { class: "why", colspan: COLUMNS.length - 2 }, run.why)
        : [
          h("td", { class: "c-algorithm" }, algorithmName(run.algorithm)),
          h("td", { class: "right c-seed" }, run.seed),
          h("td", { class: "c-tasks" }, h("div", { class: "chips" }, run.tasks.slice(0, 6).map(taskChip), run.tasks.length > 6 ? h("span", { class: "chip" }, `+${run.tasks.length - 6}`) : null)),
          h("td", { class: "right c-t", title: `${seconds(run.seconds)} of real time` }, number(run.t)),
          h("td", { class: "right c-updates" }, number(run.updates)),
          h("td", { class: "right c-rate" }, number(run.rate, 3)),
          h("td", { class: "right c-changed" }, ago(run.changed)),
        ]);
  }

  async function draw() {
    Object.assign(remembered, filter);
    const mine = ++ticket;
    const [matches, values] = await Promise.all([matcher(filter.text), filter.key ? column(filter.key) : {}]);
    if (mine !== ticket) return;
    const order = (a, b) => {
      const [x, y] = [a[filter.sort], b[filter.sort]];
      if (x === y) return a.name.localeCompare(b.name, undefined, { numeric: true });
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      const ordered = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
      return filter.down ? -ordered : ordered;
    };
    visible = [...state.runs.values()].filter((run) =>
      (!filter.algorithm || run.algorithm === filter.algorithm) && (!filter.status || run.status === filter.status)
      && (!filter.key || (filter.value ? String(values[run.id]) === filter.value : values[run.id] !== undefined))
      && matches(run)).sort(order);
    const focused = document.activeElement?.closest?.("tr")?.dataset.id;
    const kind = document.activeElement?.tagName;
    replace(body, visible.slice(0, shown).map(row));
    if (focused && body.querySelector) body.querySelector(`tr[data-id="${focused}"] ${kind === "A" ? "a" : "input"}`)?.focus();
    replace(more, visible.length > shown
      ? h("button", { type: "button", class: "button", onclick: () => { shown += PAGE; draw(); } }, `Show ${Math.min(PAGE, visible.length - shown)} more`)
      : null);
    const nothing = state.runs.size === 0;
    table.hidden = visible.length === 0;
    replace(blank, visible.length ? null : nothing
      ? state.ready
        ? empty("No runs here yet", `This page shows what is recorded under ${state.folders.join(", ")}.`, "Start one with: fedast run CONFIG --out DIR. It appears here by itself.")
        : empty("Reading the records…")
      : empty("No run matches", "Change or clear the filter."));
    drawCount();
  }

  function drawCount() {
    count.textContent = visible.length === state.runs.size ? plural(visible.length, "run") : `${visible.length} of ${plural(state.runs.size, "run")}`;
    const chosen = state.selected.size;
    compareLink.textContent = chosen ? `Compare ${chosen}` : `Compare all`;
    compareLink.href = "#/compare";
    clearButton.hidden = chosen === 0;
    all.checked = visible.length > 0 && visible.every((run) => state.selected.has(run.id) || run.status === "broken");
    all.indeterminate = !all.checked && visible.some((run) => state.selected.has(run.id));
  }

  drawHead();
  drawFields();
  draw();
  let due = null;
  return {
    element,
    title: () => `${plural(state.runs.size, "run")}`,
    update: () => {
      due ??= setTimeout(() => { due = null; keys = null; drawFields(); draw(); }, 150);
    },
    destroy: () => { clearTimeout(due); ticket++; },
  };
}
