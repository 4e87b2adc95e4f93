// A federation: who is here, what each client does, what waits, who misbehaved.
import { h, replace, card, empty } from "./dom.js";
import { state, get } from "./state.js";
import { bars } from "./charts.js";
import { look } from "./palette.js";
import { number, metric, seconds, plural } from "./format.js";

const EVERY = 2000;
const SHOWN = 300;

export function federationView({ id }) {
  const head = h("div", { class: "run-header" });
  const body = h("div");
  const element = h("div", {}, head, body);
  const search = h("input", { type: "search", placeholder: "Find a client", "aria-label": "Find a client", oninput: () => last && drawClients(last) });
  const clients = h("div", { class: "scroll tall" });
  const tasks = h("div", { class: "scroll" });
  const models = h("div");
  const trouble = h("div");
  let built = false;
  let timer = null;
  let gone = false;
  let last = null;
  let before = null;
  let rate = null;

  async function load() {
    try {
      const answer = await get(`federation/${encodeURIComponent(id)}`);
      if (!gone) draw(answer);
    } catch (error) {
      if (!gone) replace(body, empty("The federation cannot be shown", error.message));
    }
    if (!gone) timer = setTimeout(load, document.hidden ? 4 * EVERY : EVERY);
  }

  function draw(answer) {
    const status = answer.status;
    const run = [...state.runs.values()].find((each) => each.name === `${answer.name}/run`);
    if (!status) {
      built = false;
      replace(head, h("h1", {}, answer.name, " ", h("span", { class: "pill stopped" }, "no answer")));
      replace(body, empty("The server does not answer", answer.trouble ?? "It is starting.",
        h("span", {}, plural(answer.keys ?? 0, "client"), " have a key.")), run ? h("p", { class: "center" }, h("a", { class: "button", href: `#/run/${run.id}` }, "See what it has recorded")) : null);
      return;
    }
    last = status;
    const updates = Object.values(status.tasks).reduce((sum, task) => sum + task.updates, 0);
    if (before && status.seconds > before.seconds) rate = (updates - before.updates) / (status.seconds - before.seconds);
    if (!before || status.seconds - before.seconds > 8) before = { updates, seconds: status.seconds };
    if (!built) {
      built = true;
      replace(body, h("div", { class: "cards" },
        card("Tasks", { wide: true }, tasks),
        card("Clients", { wide: true, controls: search }, clients),
        card("Models in use", { note: "How many requests are out on each version of a model; the newest is the round." }, models),
        card("Strikes and quarantine", { note: "Why clients are not trusted. fedast ctl FOLDER pardon N lets one back in." }, trouble)));
    }
    const facts = [
      ["Clients here", `${number(status.client_count)} of ${number(answer.keys)}`],
      ["Up for", seconds(status.seconds)],
      ["Updates", number(updates)],
      ["Updates/s", rate === null ? "–" : number(rate, 3)],
      ["Requests out", number(Object.values(status.tasks).reduce((sum, task) => sum + task.in_flight, 0))],
      ["Quarantined", number(status.quarantined.length)],
      ["Last commit", status.commit_age === undefined ? "–" : `${seconds(status.commit_age)} ago`],
    ];
    replace(head,
      h("h1", {}, answer.name, " ", h("span", { class: `pill ${status.paused ? "interrupted" : status.began ? "running" : "stopped"}` }, status.paused ? "paused" : status.began ? "training" : `waiting for ${status.min_clients} clients`)),
      h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      run ? h("p", { class: "crumbs" }, h("a", { href: `#/run/${run.id}` }, "Its learning curves and records")) : null);
    drawTasks(status);
    drawClients(status);
    drawModels(status);
    drawTrouble(status);
  }

  function drawTasks(status) {
    replace(tasks, table(["Task", "Metric", "Round", "Updates", "Requests out", "Allocated", "Buffered", ""],
      Object.entries(status.tasks).map(([name, task]) => [
        name, metric(task.metric), number(task.round), number(task.updates), number(task.in_flight), number(task.requests),
        `${number(task.buffered)} of ${task.buffer ?? "all"}`, task.finished ? `finished: ${task.finished}` : "",
      ]), [1, 2, 3, 4, 5, 6]));
  }

  function drawClients(status) {
    const here = new Set(status.clients);
    const resting = new Set(status.resting);
    const bad = new Set(status.quarantined);
    const wanted = search.value.trim();
    const all = [...new Set([...status.clients, ...status.quarantined, ...Object.keys(status.requests).map(Number), ...Object.keys(status.last_seen ?? {}).map(Number)])]
      .filter((client) => !wanted || `client-${client}`.includes(wanted)).sort((a, b) => a - b);
    const rows = all.slice(0, SHOWN).map((client) => {
      const work = status.work?.[client] ?? [];
      const queue = status.requests[client] ?? 0;
      const where = bad.has(client) ? "quarantined" : !here.has(client) ? "away" : resting.has(client) ? "resting" : queue ? "training" : "idle";
      return [
        `client-${client}`,
        h("span", { class: `pill ${{ quarantined: "broken", away: "stopped", resting: "interrupted", training: "running", idle: "finished" }[where]}` }, where),
        work.length ? `${work[0].task}, version ${work[0].version}` : "–",
        number(queue), number(status.counted?.[client] ?? (status.counted ? 0 : null)),
        number(status.strikes?.[client] ?? 0), number(status.failures?.[client] ?? 0),
        status.last_seen?.[client] === undefined ? "–" : `${seconds(status.last_seen[client])} ago`,
      ];
    });
    replace(clients, rows.length ? table(["Client", "State", "Works on", "Queue", "Updates", "Strikes", "Failures", "Last seen"], rows, [3, 4, 5, 6, 7]) : h("p", { class: "nothing" }, "Nobody is here"),
      all.length > SHOWN ? h("p", { class: "axis-note" }, `${all.length - SHOWN} more; find one by its number`) : null);
  }

  function drawModels(status) {
    replace(models, Object.keys(status.tasks).filter((task) => status.versions?.[task]).map((task) => h("div", {}, h("h3", {}, task),
      bars(Object.entries(status.versions[task]).sort((a, b) => b[0] - a[0]).slice(0, 12).map(([version, count]) => ({
        label: `version ${version}`, value: count, ...look(Object.keys(status.tasks).indexOf(task)), text: plural(count, "request"),
      }))))), Object.keys(status.versions ?? {}).length ? null : h("p", { class: "nothing" }, "No request is out"));
  }

  function drawTrouble(status) {
    const rows = Object.entries(status.reasons).map(([client, reasons]) => [
      `client-${client}`, status.quarantined.includes(Number(client)) ? "quarantined" : plural(status.strikes?.[client] ?? 0, "strike"),
      reasons.map((reason) => `${number(reason.t)} s: ${reason.why}`).join("; ") || "–",
    ]);
    replace(trouble, rows.length ? table(["Client", "State", "Why"], rows, []) : h("p", { class: "nothing" }, "Nobody has a strike"));
  }

  load();
  return { element, title: () => "Federation", restyle: () => last && drawModels(last), destroy: () => { gone = true; clearTimeout(timer); } };
}

/** ``right``: columns of numbers. */
function table(names, rows, right) {
  const side = (index) => ({ class: right.includes(index) ? "right" : null });
  return h("table", { class: "small" },
    h("thead", {}, h("tr", {}, names.map((name, index) => h("th", side(index), name)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, index) => h("td", side(index), cell))))));
}
