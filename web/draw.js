// Pictures on plain canvases: maps, small lines, sparks.
import { colour } from "./state.js";
import { axisTexts, toNumber, wholeText } from "./format.js";

export const CELL = { nan: 250, positive: 251, negative: 252, gap: 253, none: 254, outside: 255 };

const RAMPS = {
  light: {
    distance: ["#2166ac", "#6ba3d0", "#c6dcec", "#efefec", "#f6cfa0", "#e58a3a", "#b4540a"],
    value: ["#fdf3c8", "#d9cf86", "#a9a97b", "#7d8790", "#52679a", "#264a8c"],
  },
  dark: {
    distance: ["#6cb4f5", "#3d7fc0", "#234a72", "#1d222b", "#5e3a17", "#b0681f", "#f5a54a"],
    value: ["#17233f", "#2b4379", "#5a6a86", "#8a8a7c", "#b3a562", "#c9b548"],
  },
};

const LINES = {
  light: ["#1f5fbf", "#b4540a", "#0a7d6b", "#8b5a9e", "#8a7000", "#a33b4f", "#2b7ea6", "#4b5563"],
  dark: ["#7db2ff", "#f5a54a", "#4fc9b0", "#c9a3e0", "#d9c75a", "#f08a94", "#6fd0f0", "#aab2be"],
};

export function themeNow() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

export function lineColour(index) {
  const list = LINES[themeNow()];
  return list[index % list.length];
}

export function rgbOf(hex) {
  const number = parseInt(hex.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

/** Colours of bytes 0 … 249, as [r, g, b]. */
export function rampOf(kind) {
  const stops = RAMPS[themeNow()][kind].map(rgbOf);
  const colours = [];
  for (let i = 0; i < 250; i++) {
    const at = (i / 249) * (stops.length - 1);
    const k = Math.min(stops.length - 2, Math.floor(at));
    colours.push([0, 1, 2].map((c) => Math.round(stops[k][c] + (stops[k + 1][c] - stops[k][c]) * (at - k))));
  }
  if (kind === "distance") colours[125] = stops[3];
  return colours;
}

export function rampStyle(kind) {
  return `linear-gradient(90deg, ${RAMPS[themeNow()][kind].join(", ")})`;
}

/** A canvas of this size in CSS pixels, sharp on every screen; returns its context. */
export function sizeCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export function hatch(context, x, y, width, height, style) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = style;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = x - height; at < x + width; at += 5) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

/** Draws a map's cells into a box: one rectangle a cell, NaN and Inf never smaller than 3 x 3. */
export function paintCells(context, map, kind, box) {
  const { w, h, cells } = map;
  if (!w || !h) return;
  const ramp = rampOf(kind);
  const odd = rgbOf(colour("odd"));
  const none = rgbOf(colour("surface"));
  const palette = new Uint32Array(256); // as bytes red, green, blue, opacity
  const bytes = new Uint8Array(palette.buffer);
  for (let cell = 0; cell < 256; cell++) {
    const rgb = cell < 250 ? ramp[cell] : cell < 253 ? odd : none;
    const clear = cell === CELL.outside || cell === CELL.gap;
    bytes.set([rgb[0], rgb[1], rgb[2], clear ? 0 : 255], 4 * cell);
  }
  const image = new ImageData(w, h);
  const to = new Uint32Array(image.data.buffer);
  let hasOdd = false;
  let hasGap = false;
  for (let i = 0; i < w * h; i++) {
    const cell = cells[i];
    to[i] = palette[cell];
    hasOdd ||= cell >= 250 && cell <= 252;
    hasGap ||= cell === CELL.gap;
  }
  const off = document.createElement("canvas");
  off.width = w;
  off.height = h;
  off.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(off, 0, 0, w, h, box.x, box.y, box.width, box.height);
  const cw = box.width / w;
  const ch = box.height / h;
  if (hasOdd && (cw < 3 || ch < 3)) {
    context.fillStyle = colour("odd");
    for (let y = 0; y < h; y++) {
      for (let x = 0; x < w; x++) {
        const cell = cells[y * w + x];
        if (cell >= 250 && cell <= 252) {
          const width = Math.max(3, cw);
          const height = Math.max(3, ch);
          context.fillRect(box.x + (x + 0.5) * cw - width / 2, box.y + (y + 0.5) * ch - height / 2, width, height);
        }
      }
    }
  }
  for (let x = 0; x < w && hasGap; x++) {
    let lost = 0;
    for (let y = 0; y < h; y++) lost += cells[y * w + x] === CELL.gap;
    if (lost > 0 && lost === h) hatch(context, box.x + x * cw, box.y, Math.max(cw, 2), box.height, colour("faint"));
  }
}

/** Shares or numbers as a filled line, the largest of each pixel. */
export function spark(canvas, values, { width = 120, height = 24, style = colour("above"), top = null } = {}) {
  const context = sizeCanvas(canvas, width, height);
  let most = top ?? 0;
  let least = Infinity;
  for (const value of values) {
    if (Number.isFinite(value)) {
      most = Math.max(most, value);
      least = Math.min(least, value);
    }
  }
  if (top !== null) least = 0;
  if (!(most > least)) least = most - 1;
  context.strokeStyle = style;
  context.fillStyle = style;
  context.lineWidth = 1.2;
  context.beginPath();
  let pen = false;
  values.forEach((value, i) => {
    const x = values.length > 1 ? (i / (values.length - 1)) * (width - 2) + 1 : width / 2;
    if (!Number.isFinite(value)) {
      pen = false;
      return;
    }
    const y = height - 2 - ((value - least) / (most - least)) * (height - 4);
    if (pen) context.lineTo(x, y);
    else context.moveTo(x, y);
    pen = true;
  });
  context.stroke();
}

/** Steps that look good as labels. */
export function niceSteps(from, to, count) {
  const span = Math.max(1, to - from);
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw));
  const steps = [];
  for (let at = Math.ceil(from / unit) * unit; at <= to; at += unit) steps.push(at);
  return steps;
}

function niceValues(low, high, isLog) {
  if (isLog) {
    const values = [];
    const from = Math.ceil(Math.log10(low));
    const to = Math.floor(Math.log10(high));
    const every = Math.max(1, Math.ceil((to - from + 1) / 4));
    for (let e = from; e <= to; e += every) values.push(10 ** e);
    return values.length ? values : [low, high];
  }
  const raw = (high - low) / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const values = [];
  for (let at = Math.ceil(low / unit) * unit; at <= high + unit * 1e-9; at += unit) values.push(Math.abs(at) < unit * 1e-9 ? 0 : at);
  return values;
}

/**
 * A small chart of its own: tracks [{min, max, last, odd, style, label}] over buckets of `per` steps
 * from `from` on; bands and limits are drawn behind them, marks are steps with a line.
 */
export function lineChart(canvas, chart, { width, height, left = 46, right = 8, top = 8, bottom = 16, axis = true } = {}) {
  const context = sizeCanvas(canvas, width, height);
  const inner = { x: left, y: top, width: width - left - right, height: height - top - bottom };
  const { from, per, w } = chart;
  let low = Infinity;
  let high = -Infinity;
  const see = (value) => {
    if (Number.isFinite(value) && value !== null) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  };
  for (const track of chart.tracks) {
    track.min.forEach(see);
    track.max.forEach(see);
  }
  (chart.range ?? []).forEach(see);
  if (!Number.isFinite(low)) {
    low = 0;
    high = 1;
  }
  const isLog = chart.log === true || (chart.log !== false && low > 0 && high / low > 50);
  if (isLog && !(low > 0)) low = high / 1e6;
  const scale = (value) => (isLog ? Math.log10(Math.max(value, low)) : value);
  let bottomValue = scale(low);
  let topValue = scale(high);
  if (!(topValue > bottomValue)) {
    const pad = Math.abs(topValue) * 0.05 || 0.5;
    bottomValue -= pad;
    topValue += pad;
  } else {
    const pad = (topValue - bottomValue) * 0.06;
    bottomValue -= pad;
    topValue += pad;
  }
  const yOf = (value) => inner.y + inner.height - ((scale(value) - bottomValue) / (topValue - bottomValue)) * inner.height;
  const xOf = (step) => inner.x + ((step - from + (per > 1 ? per / 2 : 0.5)) / (w * per)) * inner.width;
  context.font = `10.5px ${colour("sans")}`;
  context.lineWidth = 1;
  for (const [first, last] of chart.gaps ?? []) {
    const x = xOf(first - 0.5);
    hatch(context, x, inner.y, Math.max(2, xOf(last + 0.5) - x), inner.height, colour("line-strong"));
  }
  context.textAlign = "right";
  context.textBaseline = "middle";
  const unscale = (value) => (isLog ? 10 ** value : value);
  const ticks = niceValues(unscale(bottomValue), unscale(topValue), isLog);
  const text = axisTexts(ticks);
  for (const value of ticks) {
    const y = Math.round(yOf(value)) + 0.5;
    if (y < inner.y - 1 || y > inner.y + inner.height + 1) continue;
    context.strokeStyle = colour("line");
    context.beginPath();
    context.moveTo(inner.x, y);
    context.lineTo(inner.x + inner.width, y);
    context.stroke();
    context.fillStyle = colour("faint");
    context.fillText(text(value), inner.x - 6, y);
  }
  if (chart.band) {
    const [a, b] = chart.band;
    context.fillStyle = colour("band");
    const y = yOf(b);
    context.fillRect(inner.x, Math.max(inner.y, y), inner.width, Math.min(inner.y + inner.height, yOf(a)) - Math.max(inner.y, y));
  }
  for (const limit of chart.limits ?? []) {
    const y = yOf(limit.value);
    if (y < inner.y - 2 || y > inner.y + inner.height + 2) continue;
    context.setLineDash([4, 3]);
    context.strokeStyle = colour("above");
    context.beginPath();
    context.moveTo(inner.x, y);
    context.lineTo(inner.x + inner.width, y);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = colour("above");
    context.textAlign = "left";
    context.fillText(limit.label, inner.x + 6, y - 7);
  }
  for (const track of chart.tracks) {
    context.fillStyle = track.style;
    context.globalAlpha = 0.22;
    for (let i = 0; i < w; i++) {
      if (track.min[i] === null || track.min[i] === track.max[i]) continue;
      const x = inner.x + (i / w) * inner.width;
      const y = yOf(track.max[i]);
      context.fillRect(x, y, Math.max(1, inner.width / w), Math.max(1, yOf(track.min[i]) - y));
    }
    context.globalAlpha = 1;
    context.strokeStyle = track.style;
    context.lineWidth = track.width ?? 1.3;
    context.beginPath();
    let pen = false;
    for (let i = 0; i < w; i++) {
      const value = track.last[i];
      if (value === null) {
        pen = pen && !(track.odd ?? []).some(([at]) => at === i) && per === 1 && i > 0 && track.sparse === true;
        continue;
      }
      const x = inner.x + ((i + 0.5) / w) * inner.width;
      if (pen) context.lineTo(x, yOf(value));
      else context.moveTo(x, yOf(value));
      pen = true;
      if (track.last[i - 1] == null && track.last[i + 1] == null) context.rect(x - 1, yOf(value) - 1, 2, 2);
    }
    context.stroke();
    drawOdd(context, track, inner, w);
  }
  for (const mark of chart.marks ?? []) drawMark(context, mark, xOf(mark.step), inner);
  if (axis) {
    context.fillStyle = colour("faint");
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const step of niceSteps(from, from + w * per - 1, Math.max(2, inner.width / 110))) {
      context.fillText(wholeText(step), Math.min(inner.x + inner.width - 10, xOf(step)), inner.y + inner.height + 4);
    }
  }
  return { inner, xOf, yOf, isLog, stepAt: (x) => Math.round(from + ((x - inner.x) / inner.width) * w * per - (per > 1 ? per / 2 : 0.5)) };
}

/** NaN and Inf of a track: a line of full height and a mark on top. */
function drawOdd(context, track, inner, w) {
  context.fillStyle = colour("odd");
  let run = null;
  const flush = () => {
    if (!run) return;
    const x = inner.x + (run[0] / w) * inner.width;
    const width = Math.max(2, ((run[1] - run[0] + 1) / w) * inner.width);
    context.globalAlpha = run[1] > run[0] || width > 8 ? 0.25 : 1;
    context.fillRect(x, inner.y, width, inner.height);
    context.globalAlpha = 1;
    triangle(context, x + Math.min(width, 8) / 2, inner.y - 1, 4);
    run = null;
  };
  for (const [at] of track.odd ?? []) {
    if (run && at === run[1] + 1) run[1] = at;
    else {
      flush();
      run = [at, at];
    }
  }
  flush();
}

export function triangle(context, x, y, size) {
  context.beginPath();
  context.moveTo(x - size, y - size * 1.3);
  context.lineTo(x + size, y - size * 1.3);
  context.lineTo(x, y);
  context.fill();
}

function drawMark(context, mark, x, inner) {
  if (x < inner.x - 1 || x > inner.x + inner.width + 1) return;
  context.fillStyle = mark.style;
  context.globalAlpha = 0.7;
  context.fillRect(x - 0.5, inner.y, 1, inner.height);
  context.globalAlpha = 1;
  if (mark.label !== undefined) {
    if (!mark.plain) triangle(context, x, inner.y, 4.5);
    if (mark.label) {
      const wide = context.measureText(mark.label).width;
      const fits = x + 10 + wide < inner.x + inner.width;
      context.textAlign = fits ? "left" : "right";
      context.textBaseline = "alphabetic";
      context.fillText(mark.label, fits ? x + 10 : x - 10, mark.below ? inner.y + 24 : inner.y - 2);
    }
  }
}

/** What a track has to say at a bucket. */
export function trackValue(track, bucket) {
  const odd = (track.odd ?? []).find(([at]) => at === bucket);
  if (odd) return odd[1] > 0 ? NaN : Infinity;
  const value = track.last[bucket];
  return value === null || value === undefined ? null : toNumber(value);
}
