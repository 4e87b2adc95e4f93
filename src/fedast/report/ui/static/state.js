// What the page knows of the runs, kept up to date by the server's events.

export const state = {
  runs: new Map(),
  federations: [],
  sweeps: [],
  folders: [],
  algorithms: {},
  version: -1,
  ready: false,
  connected: false,
  selected: new Set(),
};

const listeners = new Set();
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
function tell(changed) {
  for (const listener of listeners) listener(changed);
}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  const answer = await fetch(`/api/${path}${query ? `?${query}` : ""}`, { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

let loading = null;
let again = false;

/** Fetch what has changed; calls that come meanwhile become one more fetch. */
export function refresh() {
  if (loading) { again = true; return loading; }
  loading = load().finally(() => {
    loading = null;
    if (again) { again = false; refresh(); }
  });
  return loading;
}

async function load() {
  const found = await get("runs", { since: state.version });
  if (found.version < state.version) {  // the server was started anew
    state.version = -1;
    state.runs.clear();
    again = true;
    return;
  }
  const changed = new Set(found.gone);
  for (const id of found.gone) { state.runs.delete(id); state.selected.delete(id); }
  for (const run of found.runs) { state.runs.set(run.id, run); changed.add(run.id); }
  for (const key of ["version", "ready", "folders", "federations", "sweeps"]) {
    if (found[key] !== undefined) state[key] = found[key];
  }
  Object.assign(state.algorithms, found.algorithms);
  columns.clear();
  tell(changed);
}

const columns = new Map();

/** The values of a configuration key by run. */
export async function column(key) {
  if (!columns.has(key)) columns.set(key, get("keys", { key }));
  return columns.get(key);
}

let source = null;

/** Listen to the server while somebody sees the page: a browser has few connections for all tabs. */
export function connect() {
  const open = () => {
    source = new EventSource("/api/news");
    source.onmessage = () => { setConnected(true); refresh().catch(() => setConnected(false)); };
    source.onerror = () => {
      setConnected(false);
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (!document.hidden) open(); }, 3000);
    };
  };
  document.addEventListener("visibilitychange", () => {
    source.close();
    if (!document.hidden) open();
  });
  open();
}

function setConnected(connected) {
  if (state.connected === connected) return;
  state.connected = connected;
  tell(new Set());
}
