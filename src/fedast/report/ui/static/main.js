// The frame of the page: which view is shown, its address, light and dark.
import { h, replace, empty } from "./dom.js";
import { state, listen, refresh, connect } from "./state.js";
import { isDark } from "./palette.js";
import { runsView } from "./runs.js";
import { runView } from "./run.js";
import { compareView } from "./compare.js";
import { federationView } from "./federation.js";
import { sweepView } from "./sweep.js";

const VIEWS = { runs: runsView, run: runView, compare: compareView, federation: federationView, sweep: sweepView };
const main = document.getElementById("main");
let view = null;

function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name = "runs", id = ""] = path.split("/");
  return { name: VIEWS[name] ? name : "runs", id: decodeURIComponent(id), query: new URLSearchParams(query) };
}

function show() {
  const { name, id, query } = address();
  const key = `${name}/${id}`;
  if (view?.key === key && view.navigate) { view.navigate(query); drawNav(name); return; }
  view?.destroy?.();
  view = { key, ...VIEWS[name]({ id, query }) };
  replace(main, view.element);
  window.scrollTo(0, 0);
  drawNav(name);
  document.title = `${view.title?.() ?? name} · fedast`;
}

let drawn = "";
function drawNav(current) {
  const links = [
    { name: "runs", href: "#/runs", text: "Runs" },
    { name: "compare", href: "#/compare", text: "Compare", count: state.selected.size },
    ...state.federations.map((found) => ({
      name: "federation", href: `#/federation/${found.id}`,
      text: state.federations.length > 1 ? found.name : "Federation",
    })),
    ...state.sweeps.map((found) => ({
      name: "sweep", href: `#/sweep/${found.id}`, text: state.sweeps.length > 1 ? `Sweep ${found.name}` : "Sweep",
    })),
  ];
  const now = JSON.stringify([links, current, location.hash]);
  if (now === drawn) return;  // or the keyboard's place would be lost at every event
  drawn = now;
  replace(document.getElementById("nav"), links.map(({ name, href, text, count }) =>
    h("a", {
      href,
      "aria-current": name === current && (["runs", "compare"].includes(name) || location.hash.startsWith(href)) ? "page" : null,
    }, text, count ? h("span", { class: "badge" }, count) : null)));
}

function drawLive() {
  const live = document.getElementById("live");
  const text = state.connected ? "live" : "reconnecting…";
  if (live.textContent !== text) live.textContent = text;
  live.classList.toggle("off", !state.connected);
  live.title = state.connected ? "The page follows the files as they change" : "fedast ui does not answer: it may have ended";
}

function setUpTheme() {
  const button = document.getElementById("theme");
  const draw = () => {
    button.textContent = isDark() ? "☀" : "☾";
    button.title = button.ariaLabel = isDark() ? "Switch to light" : "Switch to dark";
  };
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("fedast-theme", next); } catch { /* storage is switched off */ }
    draw();
    view?.restyle?.();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { draw(); view?.restyle?.(); });
  draw();
}

listen((changed) => {
  drawLive();
  drawNav(address().name);
  view?.update?.(changed);
  if (view) document.title = `${view.title?.() ?? view.key} · fedast`;
});
addEventListener("hashchange", show);
setUpTheme();
drawLive();
refresh().then(() => { show(); connect(); }).catch((error) => {
  replace(main, empty("The runs cannot be loaded", error.message));
});
