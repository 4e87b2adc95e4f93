// Who did the work: load by client and speed group, and how fairly it was shared.
import { h, replace, card } from "./dom.js";
import { chart, swatch } from "./charts.js";
import { look as taskLook } from "./palette.js";
import { number, percent } from "./format.js";

/** Not the colours that tasks have. */
const look = (index) => taskLook(index + 3);

export function clientCards() {
  const blank = { lines: [], xLabel: "", yLabel: "" };
  const load = chart(blank, { label: "Updates by client" });
  const lorenz = chart(blank, { label: "Lorenz curve of participation" });
  const groups = h("div", { class: "scroll" });
  const fairness = h("dl", { class: "facts" });

  function draw(found) {
    const nothing = "This record does not say which clients took part; runs of this version do";
    const names = found?.groups.map((group) => group.name) ?? [];
    const shown = found?.shown;
    const x = shown ? shown.client.map((_, index) => index + 1) : [];
    const step = found ? Math.max(1, Math.round(found.clients / x.length)) : 1;
    const of = (number) => shown.counted.map((count, index) => (shown.group === null || shown.group[index] === number ? count : null));
    load.update({
      height: 230, yMin: 0, nothing, whole: true,
      xLabel: `Clients, ${names.length ? "by speed group and " : ""}most active first${step > 1 ? ` (every ${step}th)` : ""}`,
      yLabel: "updates",
      lines: !shown ? [] : names.length
        ? names.map((name, index) => ({ label: name, x, y: of(index), kind: "bars", size: 1, ...look(index) }))
        : [{ label: "updates", x, y: shown.counted, kind: "bars", size: 1, ...look(0) }],
    });
    replace(groups, found ? groupTable(found) : null);
    const curve = found?.lorenz;
    lorenz.update({
      height: 230, yMin: 0, yMax: 1, nothing, xLabel: "share of clients, least active first", yLabel: "share of updates",
      xFormat: (v) => percent(v), yFormat: (v) => percent(v),
      lines: curve ? [
        { label: "this run", x: curve.x, y: curve.y, fill: 0.12, ...look(0) },
        { label: "all alike", x: curve.x, y: curve.x, width: 1, color: "#888888", dash: [4, 4] },
      ] : [],
    });
    replace(fairness, found && curve ? [
      fact("Jain's index", number(found.all.jain, 3), "1: every client did the same; 1/n: one did everything"),
      fact("Gini coefficient", number(curve.gini, 3), "0: every client did the same"),
      fact("Never took part", `${number(found.all.never)} of ${number(found.clients)}`),
      fact("Least, most", `${number(found.all.least)}, ${number(found.all.most)}`, "Updates of one client"),
    ] : null);
  }

  return {
    elements: [
      card("Load by client", { note: "Updates that counted. ×1.3 is the group whose training takes 1.3 times as long." }, load.element, groups),
      card("Fairness of participation", { note: "How evenly the updates come from the clients." }, lorenz.element, fairness),
    ],
    draw,
    restyle: () => { load.restyle(); lorenz.restyle(); },
    destroy: () => { load.destroy(); lorenz.destroy(); },
  };
}

const fact = (name, value, title) => h("div", { title }, h("dt", {}, name), h("dd", {}, value));

function groupTable(found) {
  const rows = [...found.groups, ...(found.groups.length === 1 ? [] : [found.all])].filter((group) => group.clients);
  return h("table", { class: "small" },
    h("thead", {}, h("tr", {}, ["Speed group", "Clients", "Updates", "Share", "Per client"]
      .map((text, index) => h("th", { class: index ? "right" : null }, text)))),
    h("tbody", {}, rows.map((group, index) => h("tr", {},
      h("td", {}, index < found.groups.length ? [swatch({ ...look(index), kind: "bars" }), " "] : null, group.name === "all" ? "all clients" : group.name),
      h("td", { class: "right" }, number(group.clients)),
      h("td", { class: "right" }, number(group.counted)),
      h("td", { class: "right", title: `of the clients: ${percent(group.clients / found.clients)}` }, percent(group.share)),
      h("td", { class: "right" }, number(group.mean, 3))))));
}
