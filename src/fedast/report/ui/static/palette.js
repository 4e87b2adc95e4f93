// Colours that colour-blind readers can tell apart (Okabe and Ito), with dashes for further lines.
import { state } from "./state.js";

const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B005D", "#000000"];
const DARK = ["#4BA3DB", "#F07F2E", "#22C397", "#DE97BE", "#F2B93B", "#8FD0F7", "#D65CAA", "#E8E8E8"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Colour and dashes of the n-th line. */
export function look(index) {
  const colours = isDark() ? DARK : LIGHT;
  return { color: colours[index % colours.length], dash: DASHES[Math.floor(index / colours.length) % DASHES.length] };
}

/** A look for each group: an algorithm has the same colour wherever it is drawn. */
export function looks(groups) {
  const own = groups.map((group) => state.algorithms[group.algorithm]?.color);
  const distinct = own.every(Boolean) && new Set(own).size === own.length;
  return groups.map((_, index) => (distinct ? { color: isDark() ? lightened(own[index]) : own[index], dash: [] } : look(index)));
}

/** Legible on a dark page: dark colours get some white. */
function lightened(color) {
  const at = LIGHT.indexOf(color.toUpperCase());
  if (at >= 0) return DARK[at];
  const parts = [1, 3, 5].map((place) => parseInt(color.slice(place, place + 2), 16));
  return `#${parts.map((part) => Math.round(part + (255 - part) * 0.35).toString(16).padStart(2, "0")).join("")}`;
}

/** An algorithm as text writes it. */
export const algorithmName = (id) => state.algorithms[id]?.name ?? id ?? "–";

export function faded(color, alpha) {
  const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${alpha})`;
}
