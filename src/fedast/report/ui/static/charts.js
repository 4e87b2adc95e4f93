// Lines, steps, bars and bands on top of uPlot: one look, a tooltip, marks and targets.
/* global uPlot */
import { h, replace } from "./dom.js";
import { number } from "./format.js";
import { faded } from "./palette.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** One table of all lines: uPlot wants the same x for each. */
function table(lines) {
  const first = lines[0]?.x ?? [];
  if (lines.every((line) => line.x === first)) return [first, ...lines.map((line) => line.y)];
  const filled = lines.map((line) => {
    const kept = line.x.map((x, i) => [x, line.y[i]]).filter(([x]) => x !== null);
    kept.sort((a, b) => a[0] - b[0]);
    return [kept.map((pair) => pair[0]), kept.map((pair) => pair[1])];
  });
  return uPlot.join(filled, filled.map(() => [2]));
}

function paths(line) {
  if (line.kind === "step") return uPlot.paths.stepped({ align: 1 });
  if (line.kind === "bars") return uPlot.paths.bars({ size: [line.size ?? 0.92, 40], align: 0 });
  if (line.kind === "points") return () => null;
  return uPlot.paths.linear();
}

function series(line) {
  return {
    label: line.label,
    stroke: line.color,
    width: line.kind === "bars" ? 0 : line.width ?? 2,
    dash: line.dash,
    fill: line.kind === "bars" ? faded(line.color, 0.85) : line.fill ? faded(line.color, line.fill) : undefined,
    spanGaps: !line.gaps,
    paths: paths(line),
    points: { show: line.kind === "points" || (line.kind !== "bars" && line.x.length === 1), size: 5, fill: line.color },
  };
}

/** The nearest point that a line has, to the left or right of the cursor. */
function nearest(plot, index, closest) {
  const values = plot.data[index];
  if (values[closest] !== null && values[closest] !== undefined) return closest;
  for (let away = 1; away < values.length; away++) {
    for (const at of [closest - away, closest + away]) {
      if (values[at] !== null && values[at] !== undefined) return at;
    }
  }
  return closest;
}

function tooltip(chart) {
  const box = h("div", { class: "tooltip", hidden: true });
  return {
    hooks: {
      init: (plot) => plot.over.append(box),
      setCursor: (plot) => {
        const { left, top, idx } = plot.cursor;
        if (idx === null || idx === undefined || left < 0) { box.hidden = true; return; }
        const rows = chart.spec.lines
          .map((line, i) => ({ line, value: plot.data[i + 1]?.[plot.cursor.idxs[i + 1] ?? idx], shown: plot.series[i + 1]?.show }))
          .filter(({ line, value, shown }) => shown && !line.quiet && value !== null && value !== undefined);
        if (!rows.length) { box.hidden = true; return; }
        const many = rows.length > 12;
        if (many) {
          const y = plot.posToVal(top, "y");
          rows.sort((a, b) => Math.abs(a.value - y) - Math.abs(b.value - y));
          rows.length = 12;
        }
        const x = plot.data[0][idx];
        replace(box,
          h("div", { class: "at" }, `${chart.spec.xLabel} ${(chart.spec.xFormat ?? number)(x)}`),
          rows.map(({ line, value }) => h("div", {}, swatch(line), h("span", {}, line.label), h("b", {}, (chart.spec.yFormat ?? number)(value)))));
        box.hidden = false;
        const space = plot.over.clientWidth;
        const width = box.offsetWidth;
        box.style.left = `${left + width + 24 > space ? Math.max(0, left - width - 14) : left + 14}px`;
        box.style.top = `${Math.max(0, Math.min(top + 12, plot.over.clientHeight - box.offsetHeight))}px`;
      },
    },
  };
}

/** Targets as dashed lines across, finished tasks and reallocations as marks on the time axis. */
function marks(chart) {
  return {
    hooks: {
      draw: (plot) => {
        const { ctx, bbox } = plot;
        const ratio = devicePixelRatio;
        ctx.save();
        ctx.beginPath();
        ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
        ctx.clip();
        for (const { y, color } of chart.spec.targets ?? []) {
          const at = plot.valToPos(y, "y", true);
          stroke(ctx, color, ratio, [5, 4], bbox.left, at, bbox.left + bbox.width, at);
        }
        for (const { x, color } of chart.spec.ticks ?? []) {
          const at = plot.valToPos(x, "x", true);
          const bottom = bbox.top + bbox.height;
          stroke(ctx, color ?? css("--faint"), ratio, [], at, bottom - 7 * ratio, at, bottom);
        }
        ctx.font = `${11 * ratio}px system-ui, sans-serif`;
        const rowEnds = [];  // where the labels of each row end, so that none covers another
        for (const { x, color, text } of [...(chart.spec.marks ?? [])].sort((a, b) => a.x - b.x)) {
          const at = plot.valToPos(x, "x", true);
          stroke(ctx, color ?? css("--faint"), ratio, [2, 3], at, bbox.top, at, bbox.top + bbox.height);
          if (!text) continue;
          const width = ctx.measureText(text).width;
          const right = at + width + 8 * ratio < bbox.left + bbox.width;
          const start = right ? at + 2 * ratio : at - width - 6 * ratio;
          let row = rowEnds.findIndex((end) => end <= start);
          if (row < 0) row = rowEnds.length;
          rowEnds[row] = start + width + 8 * ratio;
          ctx.textAlign = right ? "left" : "right";
          ctx.textBaseline = "alphabetic";
          const y = bbox.top + (12 + 15 * (row % 6)) * ratio;
          ctx.fillStyle = css("--card");  // the text stays legible where lines cross it
          ctx.fillRect(start, y - 10 * ratio, width + 4 * ratio, 13 * ratio);
          ctx.fillStyle = color ?? css("--dim");
          ctx.fillText(text, at + (right ? 4 : -4) * ratio, y);
        }
        ctx.restore();
      },
    },
  };
}

function stroke(ctx, color, ratio, dash, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.strokeStyle = color;
  ctx.lineWidth = ratio;
  ctx.setLineDash(dash.map((part) => part * ratio));
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
  ctx.setLineDash([]);
}

function yRange(chart) {
  return (plot, low, high) => {
    const { targets = [], yMin, yMax } = chart.spec;
    const values = [low, high, ...targets.map((target) => target.y)].filter((v) => v !== null && Number.isFinite(v));
    if (!values.length) return [0, 1];
    let least = Math.min(...values);
    let most = Math.max(...values);
    if (yMin !== undefined) least = Math.min(yMin, least);
    if (yMax !== undefined) most = Math.max(yMax, most);
    const room = (most - least || Math.abs(most) || 1) * 0.06;
    return [yMin !== undefined && least >= yMin ? yMin : least - room, most + room];
  };
}

function options(chart, width) {
  const { spec } = chart;
  const font = "12px system-ui, sans-serif";
  const axis = {
    stroke: css("--dim"), font, labelFont: font, labelSize: 20,
    grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1, size: 4 },
  };
  return {
    width, height: spec.height ?? 260,
    padding: [10, 14, 0, 0],
    legend: { show: false },
    cursor: {
      drag: { x: true, y: false }, points: { size: 7 },
      dataIdx: (plot, index, closest) => (index === 0 ? closest : nearest(plot, index, closest)),
      y: false,
    },
    scales: { x: { time: false, range: spec.xRange }, y: { range: yRange(chart) } },
    axes: [
      { ...axis, label: spec.xLabel, size: 34, ...(spec.whole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] } : {}), values: spec.xFormat ? (_, all) => all.map(spec.xFormat) : (_, all) => all.map((v) => number(v)) },
      { ...axis, label: spec.yLabel, size: 58, values: (_, all) => all.map(spec.yFormat ?? ((v) => number(v))) },
    ],
    series: [{}, ...spec.lines.map(series)],
    bands: spec.bands?.map(({ high, low, color }) => ({ series: [high + 1, low + 1], fill: faded(color, 0.16) })),
    plugins: [tooltip(chart), marks(chart)],
  };
}

const shape = (spec) => JSON.stringify([
  spec.lines.map((l) => [l.label, l.kind, l.color, l.dash, l.fill]), spec.bands, spec.xLabel, spec.yLabel, spec.height,
]);

/** A chart that follows its data: ``update`` draws new numbers, and builds anew only if it must. */
export function chart(spec, { label } = {}) {
  const element = h("div", { class: "chart", role: "img", "aria-label": label ?? `${spec.yLabel} against ${spec.xLabel}` });
  const it = { element, spec, plot: null, built: "", hidden: new Set() };

  const none = (now) => now.lines.every((line) => !line.y.some((value) => value !== null && value !== undefined));

  function build() {
    element.style.minHeight = `${it.spec.height ?? 260}px`;
    it.plot?.destroy();
    it.plot = null;
    if (none(it.spec)) {
      replace(element, h("p", { class: "nothing" }, it.spec.nothing ?? "Nothing recorded yet"));
      return;
    }
    replace(element);
    const width = element.clientWidth;
    if (!width) return;
    it.built = shape(it.spec);
    it.plot = new uPlot(options(it, width), table(it.spec.lines), element);
    hide();
  }
  function hide() {
    it.spec.lines.forEach((line, index) => {
      const shown = !it.hidden.has(line.group ?? line.label);
      if (it.plot.series[index + 1].show !== shown) it.plot.setSeries(index + 1, { show: shown });
    });
  }
  it.update = (next) => {
    it.spec = next;
    element.dataset.points = String(next.lines.reduce((sum, line) => sum + (line.quiet ? 0 : line.y.filter((v) => v !== null && v !== undefined).length), 0));
    if (!it.plot || it.built !== shape(next) || none(next)) build();
    else it.plot.setData(table(next.lines));
  };
  it.restyle = build;
  it.setHidden = (hidden) => { it.hidden = hidden; if (it.plot) hide(); };
  const observer = new ResizeObserver(() => {
    const width = element.clientWidth;
    if (!width) return;
    if (!it.plot) build();
    else if (it.plot.width !== width) it.plot.setSize({ width, height: it.spec.height ?? 260 });
  });
  observer.observe(element);
  it.destroy = () => { observer.disconnect(); it.plot?.destroy(); };
  return it;
}

export function swatch({ color, dash, kind }) {
  const box = h("i", { class: kind === "bars" ? "swatch box" : "swatch" });
  if (kind === "bars") box.style.background = color;
  else {
    const canvas = dash?.length ? `repeating-linear-gradient(90deg, ${color} 0 ${dash[0]}px, transparent ${dash[0]}px ${dash[0] + dash[1]}px)` : color;
    box.style.background = canvas;
  }
  return box;
}

/** Means over stretches of equal length: what goes up and down all the time becomes a line. */
export function smooth(x, y, parts = 120) {
  const points = x.map((at, index) => [at, y[index]]).filter(([at, value]) => at !== null && value !== null);
  if (points.length <= parts) return { x: points.map((p) => p[0]), y: points.map((p) => p[1]) };
  const start = points[0][0];
  const width = (points.at(-1)[0] - start) / parts || 1;
  const sums = new Map();
  for (const [at, value] of points) {
    const place = Math.min(parts - 1, Math.floor((at - start) / width));
    const sum = sums.get(place) ?? [0, 0];
    sums.set(place, [sum[0] + value, sum[1] + 1]);
  }
  const places = [...sums.keys()].sort((a, b) => a - b);
  return { x: places.map((place) => start + (place + 0.5) * width), y: places.map((place) => sums.get(place)[0] / sums.get(place)[1]) };
}

/** Names with their colours; a click hides a line in all charts of a view. */
export function legend(entries, hidden, onchange) {
  return h("div", { class: "legend" }, entries.map(({ label, name, ...line }) =>
    h("button", {
      type: "button", "aria-pressed": String(!hidden.has(label)), title: "Show or hide",
      onclick: (event) => {
        if (hidden.has(label)) hidden.delete(label); else hidden.add(label);
        event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(label)));
        onchange(hidden);
      },
    }, swatch(line), name ?? label)));
}

/** Horizontal bars with their values as text. */
export function bars(rows, { most } = {}) {
  const top = most ?? Math.max(...rows.map((row) => (row.value ?? 0) + (row.deviation ?? 0)), 0);
  const share = (value) => `${top ? Math.min(100, (100 * value) / top) : 0}%`;
  return h("div", { class: "bars" }, rows.map((row) => h("div", { class: "bar" },
    h("span", { class: "bar-label", title: row.label }, row.swatch ? swatch(row) : null, row.label),
    h("span", { class: "bar-track" },
      row.value === null || row.value === undefined
        ? null
        : h("span", { class: "bar-fill", style: { width: share(row.value), background: row.color } }),
      row.deviation
        ? h("span", { class: "bar-error", style: { left: share(Math.max(0, row.value - row.deviation)), width: share(Math.min(2 * row.deviation, row.value + row.deviation)) } })
        : null),
    h("span", { class: "bar-text" }, row.text))));
}
