// Charts with uPlot. An element with data-chart names the JSON twin of the page, data-path the object in it that
// has `times` and `values` (or several series, `data-series`), and data-lines the labels.
import uPlot from "/static/uplot/uPlot.esm.js";

const charts = new Map();

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { line: of("--accent"), fill: of("--accent-soft"), second: of("--odd"), axis: of("--muted"), grid: of("--line") };
}

function compact(value) {
  return value === null ? "–" : Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", { timeZone: "UTC" });
}

function options(element, labels) {
  const { line, fill, second, axis, grid } = colours();
  const tick = { stroke: axis, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width: Math.max(200, element.clientWidth),
    height: 190,
    cursor: { y: false },
    scales: { y: { range: (_, low, high) => [0, Math.max(1, (high ?? 1) * 1.1)] } },
    axes: [{ ...tick, space: 90, values: (_, ticks) => ticks.map(clock) }, { ...tick, size: 54, values: (_, ticks) => ticks.map(compact) }],
    series: [
      { label: "UTC", value: (_, at) => (at === null ? "–" : clock(at)) },
      ...labels.map((label, index) => ({
        label, stroke: index ? second : line, fill: index ? undefined : fill, width: 1.75, points: { show: false },
        value: (_, value) => compact(value),
      })),
    ],
  };
}

function pick(data, path) {
  return path.split(".").filter(Boolean).reduce((value, name) => value?.[name], data);
}

async function draw(element) {
  let found;
  try {
    const response = await fetch(element.dataset.chart);
    if (!response.ok) return;
    found = pick(await response.json(), element.dataset.path ?? "");
  } catch { return; }
  if (!found || !found.times || found.times.length < 2) return;
  const names = (element.dataset.series ?? "values").split(",");
  const data = [found.times, ...names.map((name) => found[name])];
  const known = charts.get(element);
  if (known) known.setData(data);
  else charts.set(element, new uPlot(options(element, element.dataset.lines.split(",")), data, element));
}

function drawAll() {
  for (const element of document.querySelectorAll("[data-chart]")) draw(element);
}

function redraw() {
  for (const [element, chart] of charts) { chart.destroy(); charts.delete(element); }
  drawAll();
}

drawAll();
setInterval(() => { if (!document.hidden) drawAll(); }, 3000);
document.documentElement.addEventListener("themechange", redraw);
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
