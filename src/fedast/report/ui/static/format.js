// Numbers and times as people read them.

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimmed(value / 1e6, 3)} M`;
  if (size !== 0 && size < 1e-4) return value.toExponential(1);
  return trimmed(value, digits);
}

function trimmed(value, digits) {
  return value.toLocaleString("en-US", { maximumSignificantDigits: digits });
}

export const metric = (value) => (value === null || value === undefined ? "–" : value.toFixed(Math.abs(value) < 10 ? 3 : 1));

export const percent = (part, digits = 0) =>
  part === null || part === undefined ? "–" : `${(100 * part).toFixed(digits)} %`;

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${(1000 * value).toFixed(0)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

export function ago(epoch) {
  const past = Date.now() / 1000 - epoch;
  if (past < 5) return "just now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return new Date(epoch * 1000).toISOString().slice(0, 10);
}

export function plain(value) {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) return value.length > 6 ? `${value.slice(0, 6).join(", ")}, … (${value.length})` : value.join(", ") || "none";
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
