// Lines over steps by dygraphs: the only file that knows it.
import { colour } from "./state.js";
import { axisTexts, wholeText } from "./format.js";
import { hatch, triangle } from "./draw.js";

/**
 * Shows lines in `host`. lines: [{label, style, min, max, last, odd}] over buckets of `per` steps
 * from `from` on. onZoom(first, last) is told what was dragged over, onHover(bucket or null) what
 * the pointer is at. Returns {destroy}.
 */
export function showLines(host, { from, per, w, lines, log, marks = [], gaps = [], limits = [], band = null, onZoom, onHover, onClick }) {
  const Dygraph = window.Dygraph;
  // Its legend writes styles into the page, which the page forbids.
  Dygraph.PLUGINS = Dygraph.PLUGINS.filter((plugin) => plugin !== Dygraph.Plugins.Legend);
  const middle = per > 1 ? (per - 1) / 2 : 0;
  const rows = [];
  for (let i = 0; i < w; i++) rows.push([from + i * per + middle, ...lines.map((line) => line.last[i])]);
  let low = Infinity;
  let high = -Infinity;
  for (const line of lines) {
    for (let i = 0; i < w; i++) {
      if (line.min[i] !== null && (!log || line.min[i] > 0)) low = Math.min(low, line.min[i]);
      if (line.max[i] !== null) high = Math.max(high, line.max[i]);
    }
  }
  const range = low < high ? (log ? [low / 1.15, high * 1.15] : [low - (high - low) * 0.06, high + (high - low) * 0.06]) : low === high ? [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)] : [0.5, 1.5];
  if (log && range[0] <= 0) range[0] = range[1] / 1e3;
  let press = null;
  const graph = new Dygraph(host, rows.length ? rows : [[0, ...lines.map(() => null)]], {
    labels: ["step", ...lines.map((line) => line.label)],
    colors: lines.map((line) => line.style),
    legend: "never",
    plugins: [],
    animatedZooms: false,
    connectSeparatedPoints: false,
    drawPoints: false,
    drawGapEdgePoints: true,
    strokeWidth: lines.length > 8 ? 1 : 1.5,
    logscale: Boolean(log),
    valueRange: range,
    dateWindow: [from - 0.5, from + w * per - 0.5],
    gridLineColor: colour("line"),
    axisLineColor: colour("line"),
    axisLabelFontSize: 11,
    axisLabelWidth: 54,
    rightGap: 8,
    highlightCircleSize: 3,
    axes: {
      x: { drawGrid: false, axisLabelFormatter: (step) => (Number.isInteger(step) ? wholeText(step) : "") },
      y: { axisLabelFormatter: (value) => axisTexts([range[0], range[1]])(value) },
    },
    highlightCallback: (event, x, points, row) => onHover?.(row),
    unhighlightCallback: () => onHover?.(null),
    underlayCallback: (context, area, g) => drawUnder(context, area, g),
    interactionModel: {
      mousedown: (event, g) => {
        event.preventDefault();
        press = g.eventToDomCoords(event)[0];
      },
      mousemove: (event, g) => {
        if (press === null) return;
        shade.style.display = "block";
        const x = g.eventToDomCoords(event)[0];
        shade.style.left = `${Math.min(press, x)}px`;
        shade.style.width = `${Math.abs(x - press)}px`;
      },
      mouseup: (event, g) => {
        if (press === null) return;
        const x = g.eventToDomCoords(event)[0];
        const [a, b] = [Math.min(press, x), Math.max(press, x)].map((at) => g.toDataXCoord(at));
        shade.style.display = "none";
        if (Math.abs(x - press) > 5) onZoom?.(Math.ceil(a), Math.floor(b));
        else onClick?.(Math.round(a));
        press = null;
      },
      mouseout: () => {
        press = null;
        shade.style.display = "none";
      },
      dblclick: () => onZoom?.(null, null),
    },
  });
  const shade = document.createElement("div");
  shade.className = "shade";
  host.append(shade);

  function drawUnder(context, area, g) {
    const xOf = (step) => g.toDomXCoord(step);
    if (band) {
      context.fillStyle = colour("band");
      const top = Math.max(area.y, g.toDomYCoord(band[1]));
      context.fillRect(area.x, top, area.w, Math.max(0, Math.min(area.y + area.h, g.toDomYCoord(band[0])) - top));
    }
    for (const [first, last] of gaps) hatch(context, xOf(first - 0.5), area.y, Math.max(2, xOf(last + 0.5) - xOf(first - 0.5)), area.h, colour("line-strong"));
    const wide = area.w / w;
    const odd = new Set(); // lines of several ranks have it at the same places: drawn once
    lines.forEach((line) => {
      context.fillStyle = line.style;
      context.globalAlpha = 0.2;
      for (let i = 0; i < w; i++) {
        if (line.min[i] === null || line.min[i] === line.max[i]) continue;
        const top = g.toDomYCoord(line.max[i]);
        context.fillRect(area.x + i * wide, top, Math.max(1, wide), Math.max(1, g.toDomYCoord(Math.max(line.min[i], range[0])) - top));
      }
      context.globalAlpha = 1;
      for (const [at] of line.odd ?? []) {
        if (odd.has(at)) continue;
        odd.add(at);
        context.fillStyle = colour("odd");
        const x = area.x + (at + 0.5) * wide;
        context.globalAlpha = 0.35;
        context.fillRect(x - Math.max(1, wide) / 2, area.y, Math.max(1.5, wide), area.h);
        context.globalAlpha = 1;
        triangle(context, x, area.y + 6, 4);
      }
    });
    context.font = `11px ${colour("sans")}`;
    for (const limit of limits) {
      const y = g.toDomYCoord(limit.value);
      if (y < area.y || y > area.y + area.h) continue;
      context.strokeStyle = colour("above");
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(area.x, y);
      context.lineTo(area.x + area.w, y);
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = colour("above");
      context.fillText(limit.label, area.x + 6, y - 4);
    }
    for (const mark of marks) {
      const x = xOf(mark.step);
      if (x < area.x || x > area.x + area.w) continue;
      context.fillStyle = mark.style;
      context.fillRect(x - 0.5, area.y, 1, area.h);
      triangle(context, x, area.y + 6, 4.5);
    }
  }
  return { destroy: () => graph.destroy(), resize: () => graph.resize() };
}
