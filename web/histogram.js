// Histograms of a series over steps, and the micro steps of one step.
import { ask, change, colour, here, make, param, words } from "./state.js";
import { dtypeText, numberText, shareText, statName, toNumber, wholeText } from "./format.js";
import { lineChart, lineColour, niceSteps, paintCells, sizeCanvas } from "./draw.js";

/** Where a dtype ends: [name, exponent] of what is too large, normal no more, and zero. */
const ENDS = {
  float16: [["fp16 max", 16], ["fp16 min normal", -14], ["fp16 tiny", -24]],
  bfloat16: [["bf16 min normal", -126]],
  float32: [["fp16 max", 16], ["fp16 min normal", -14], ["fp16 tiny", -24]],
  float8_e4m3fn: [["e4m3 max", 8.8], ["e4m3 min normal", -6], ["e4m3 tiny", -9]],
  float8_e5m2: [["e5m2 max", 16], ["e5m2 min normal", -14], ["e5m2 tiny", -16]],
};
const PLOT_LEFT = 64;

/** Its card: steps from left to right, values from below, colour by the share of elements. */
export async function histogramCard(key, what) {
  const found = await ask("histogram", { q: key.q, row: key.row, what: what === "values" ? "values" : "", rank: param("rank"), from: param("from"), to: param("to") });
  const card = make("section.card", { id: what, "data-found": found.found }, make("p.between", {}, make("h2", { text: words(what === "values" ? "histogram" : "exponents") }), make("span.note", { text: [words("share_of_elements"), found.every > 1 ? words("every_nth", { n: found.every }) : ""].filter(Boolean).join(" \u00b7 ") })));
  if (!found.found) {
    card.append(make("p.note", { text: words("no_histogram") }));
    return { card, draw: () => {} };
  }
  const canvas = make("canvas", { role: "img", tabindex: 0, "aria-label": words("chart_of", { name: words(what === "values" ? "histogram" : "exponents") }) });
  const tag = make("p.note.readout", { text: words("hover_cell") });
  card.append(canvas, tag);
  return { card, draw: () => drawHistogram(canvas, tag, found, what) };
}

function drawHistogram(canvas, tag, found, what) {
  const { w, bins, counts, elements } = found;
  const isExponent = what !== "values";
  const width = Math.max(220, canvas.parentElement.clientWidth - 30);
  const each = Math.max(3, Math.min(10, Math.floor(300 / bins)));
  const context = sizeCanvas(canvas, width, bins * each + 40);
  const box = { x: PLOT_LEFT, y: 14, width: width - PLOT_LEFT - 8, height: bins * each };
  const cells = new Uint8Array(w * bins).fill(254);
  const largest = Math.max(1e-12, ...counts.map((count, i) => count / (elements[Math.floor(i / bins)] || 1)));
  const shareAt = (column, bin) => counts[column * bins + bin] / (elements[column] || 1);
  for (let x = 0; x < w; x++) {
    for (let y = 0; y < bins; y++) {
      // A single element among millions shows: the root brings small shares up.
      if (elements[x] && counts[x * bins + y] > 0) cells[(bins - 1 - y) * w + x] = Math.round(20 + 229 * Math.sqrt(shareAt(x, y) / largest));
    }
  }
  paintCells(context, { w, h: bins, cells }, "value", box);
  const wide = found.high - found.low;
  const yOf = (value) => box.y + box.height - ((value - found.low) / wide) * box.height;
  context.font = `10.5px ${colour("sans")}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillStyle = colour("faint");
  const ticks = isExponent ? niceSteps(found.low, found.high, box.height / 22) : [found.low, (found.low + found.high) / 2, found.high];
  for (const value of ticks) context.fillText(isExponent ? powerText(value) : numberText(value, 3), box.x - 6, Math.max(8, yOf(value)));
  if (isExponent) {
    context.textAlign = "left";
    for (const [name, exponent] of ENDS[dtypeText(found.dtype)] ?? []) {
      if (exponent < found.low || exponent > found.high + 1) continue;
      const y = yOf(Math.min(exponent, found.high));
      context.strokeStyle = colour("above");
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(box.x, y);
      context.lineTo(box.x + box.width, y);
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = colour("above");
      context.fillText(name, box.x + 4, y - 6);
    }
  }
  context.fillStyle = colour("odd");
  for (let x = 0; x < w; x++) if (found.odd[x] > 0) context.fillRect(box.x + (x / w) * box.width, box.y - 8, Math.max(2, box.width / w), 5);
  context.fillStyle = colour("faint");
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const step of niceSteps(found.from, found.to, Math.max(2, box.width / 110))) context.fillText(wholeText(step), box.x + ((step - found.from + 0.5) / (w * found.per)) * box.width, box.y + box.height + 5);
  canvas.dataset.bins = bins;
  canvas.addEventListener("pointermove", (event) => {
    const column = Math.floor(((event.offsetX - box.x) / box.width) * w);
    const bin = bins - 1 - Math.floor((event.offsetY - box.y) / each);
    if (column < 0 || column >= w || bin < 0 || bin >= bins) return;
    const first = found.from + column * found.per;
    const last = Math.min(found.to, first + found.per - 1);
    const low = found.low + (bin * wide) / bins;
    const range = isExponent ? `${powerText(low)} \u2026 ${powerText(low + 1)}` : `${numberText(low, 3)} \u2026 ${numberText(low + wide / bins, 3)}`;
    const count = counts[column * bins + bin];
    tag.textContent = [words("step_n", { step: first === last ? wholeText(first) : `${wholeText(first)}\u2013${wholeText(last)}` }), range, words("n_elements", { count: wholeText(Math.round(count)), share: shareText(count, elements[column]) }), found.zeros[column] ? words("n_zeros", { share: shareText(found.zeros[column], elements[column]) }) : "", found.odd[column] ? words("n_odd", { count: wholeText(found.odd[column]) }) : ""].filter(Boolean).join(" \u00b7 ");
  });
  canvas.addEventListener("click", (event) => {
    const column = Math.floor(((event.offsetX - box.x) / box.width) * w);
    if (column >= 0 && column < w && !here.data) change({ step: found.from + column * found.per });
  });
}

const RAISED = { "-": "\u207b", 0: "\u2070", 1: "\u00b9", 2: "\u00b2", 3: "\u00b3", 4: "\u2074", 5: "\u2075", 6: "\u2076", 7: "\u2077", 8: "\u2078", 9: "\u2079" };

/** "2⁻¹⁴" */
function powerText(exponent) {
  return `2${[...String(exponent)].map((one) => RAISED[one] ?? one).join("")}`;
}

/** The micro steps of a step, if there are several. */
export async function microCard(key, step) {
  let found;
  try {
    found = await ask("micro", { q: key.q, row: key.row, rank: param("rank"), step });
  } catch {
    return null; // the series has no such step
  }
  if (found.records.length < 2) return null;
  const stat = param("s", "norm");
  const value = (record) => record[stat === "zeros" ? "zeros" : stat];
  const canvas = make("canvas", { role: "img", "aria-label": words("micro_of", { step }) });
  const columns = [...new Set([stat, "norm", "max_abs", "mean", "std"])];
  const card = make(
    "section.card",
    { id: "micro", "data-step": step, "data-count": found.records.length },
    make("p.between", {}, make("h2", { text: words("micro_of", { step: wholeText(step) }) }), make("span.note", { text: `${statName(stat)} \u00b7 ${words("rank_n", { rank: found.rank })}` })),
    canvas,
    make("div.scroll", {}, make("table", {}, make("thead", {}, make("tr", {}, make("th", { text: words("micro") }), ...columns.map((name) => make("th", { text: statName(name) })), make("th", { text: "NaN \u00b7 Inf" }))), make("tbody", {}, ...found.records.map((record) => make("tr", {}, make("td.mono", { text: record.micro_step }), ...columns.map((name) => make(typeof record[name] === "string" ? "td.mono.bad" : "td.mono", { text: numberText(record[name], 6) })), make("td.mono", { text: `${wholeText(record.nan)} \u00b7 ${wholeText(record.pos_inf + record.neg_inf)}` })))))),
  );
  const draw = () => {
    const values = found.records.map((record) => toNumber(value(record)));
    const finite = values.map((one) => (Number.isFinite(one) ? one : null));
    const odd = values.flatMap((one, i) => (Number.isFinite(one) ? [] : [[i, Number.isNaN(one) ? 1 : 0, Number.isNaN(one) ? 0 : 1]]));
    lineChart(canvas, { from: 0, per: 1, w: values.length, tracks: [{ min: finite, max: finite, last: finite, odd, style: lineColour(0) }] }, { width: Math.max(220, card.clientWidth - 30), height: 120, left: 56 });
  };
  return { card, draw };
}
