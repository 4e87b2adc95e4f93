// A run's configuration, and where it differs from another run's.
import { h, replace, card, select } from "./dom.js";
import { state, get } from "./state.js";
import { plain } from "./format.js";

export function configurationCard(run) {
  const search = h("input", { type: "search", placeholder: "Find a key", "aria-label": "Find a key", oninput: () => draw() });
  const other = h("span");
  const body = h("div", { class: "scroll tall" });
  let shown = run;
  let against = "";
  let config = null;
  let drawnOthers = "";

  function drawOthers() {
    const others = [...state.runs.values()].filter((each) => each.id !== shown.id && each.status !== "broken")
      .sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true })).slice(0, 500);
    const now = others.map((each) => each.id).join();
    if (now === drawnOthers && other.firstChild) return;
    drawnOthers = now;
    replace(other, select("Difference to", [{ value: "", text: "no other run" }, ...others.map((each) => ({ value: each.id, text: each.name }))], against, async (value) => {
      against = value;
      config = value ? (await get("config", { runs: value }))[value] : null;
      draw();
    }));
  }

  function draw(next) {
    if (next) shown = next;
    drawOthers();
    const text = search.value.toLowerCase();
    const keys = [...new Set([...Object.keys(shown.config), ...Object.keys(config ?? {})])]
      .filter((key) => key.toLowerCase().includes(text))
      .filter((key) => !config || same(shown.config[key]) !== same(config[key]));
    replace(body, keys.length ? h("table", { class: "small config" },
      config ? h("thead", {}, h("tr", {}, h("th", {}, "Key"), h("th", {}, "This run"), h("th", {}, "The other"))) : null,
      h("tbody", {}, keys.map((key) => h("tr", {}, h("th", { scope: "row" }, key), h("td", {}, plain(shown.config[key])), config ? h("td", {}, plain(config[key])) : null))))
      : h("p", { class: "nothing" }, config ? "The two configurations are the same" : Object.keys(shown.config).length ? "No key matches" : "This record has no configuration"));
  }

  return { element: card("Configuration", { wide: true, controls: h("div", { class: "fields" }, search, other) }, body), draw };
}

// The server sends lists of another run as text.
const same = (value) => (value === undefined ? "" : typeof value === "object" ? JSON.stringify(value).replaceAll(",", ", ").replaceAll("  ", " ") : String(value));
