// Series: what did it do?
import { ask, change, coarseText, colour, fill, here, make, numberParam, param, quantityName, words } from "./state.js";
import { dtypeText, fitName, isOdd, numberText, plainName, statName, timeText, wholeText } from "./format.js";
import { lineColour, trackValue } from "./draw.js";
import { showLines } from "./chart.js";
import { histogramCard, microCard } from "./histogram.js";
import { buttons, choice } from "./map.js";
import { incidentMarks } from "./run.js";

const MOST = 50;
const LIMITS = { float16: ["fp16 max", 65504], float8_e4m3fn: ["fp8 e4m3 max", 448], float8_e5m2: ["fp8 e5m2 max", 57344] };

export function keysOf(text) {
  return text.split("|").filter(Boolean).slice(0, MOST);
}

/** How many of a rank's lines are shown one by one; others are a band. */
const RANKS_SHOWN = 8;

/** Ranks together: the median of them, and a band that leaves out this share of them on either side. */
export function bandOf(ranks, w, leave = 0) {
  const band = { min: [], max: [], last: [], odd: [] };
  const at = (values, share) => (values.length ? values[Math.round((values.length - 1) * share)] : null);
  const sorted = (values) => values.filter((value) => value !== null).sort((a, b) => a - b);
  for (let i = 0; i < w; i++) {
    band.last.push(at(sorted(ranks.map((one) => one.v.last[i])), 0.5));
    band.min.push(at(sorted(ranks.map((one) => one.v.min[i])), leave));
    band.max.push(at(sorted(ranks.map((one) => one.v.max[i])), 1 - leave));
  }
  band.odd = [...new Map(ranks.flatMap((one) => one.v.odd).map((one) => [one[0], one])).values()].sort((a, b) => a[0] - b[0]);
  return band;
}

/** Ranks farther than 6 MAD from the median of all ranks somewhere, or alone with a NaN or Inf; the farthest first. */
export function outliersOf(ranks, w) {
  const scores = ranks.map(() => 0);
  const odd = ranks.map((one) => new Set(one.v.odd.map(([at]) => at)));
  for (let i = 0; i < w; i++) {
    const values = ranks.map((one) => one.v.last[i]).filter((value) => value !== null).sort((a, b) => a - b);
    const bad = odd.filter((one) => one.has(i)).length;
    ranks.forEach((one, r) => {
      if (odd[r].has(i) && 2 * bad < ranks.length) scores[r] = Infinity;
    });
    if (values.length < 5) continue;
    const median = values[values.length >> 1];
    const mad = values.map((value) => Math.abs(value - median)).sort((a, b) => a - b)[values.length >> 1];
    const unit = Math.max(mad, 0.02 * Math.abs(median), 1e-30);
    ranks.forEach((one, r) => {
      const value = one.v.last[i];
      if (value !== null) scores[r] = Math.max(scores[r], Math.abs(value - median) / unit);
    });
  }
  return ranks.map((one, r) => [one, scores[r]]).filter(([, score]) => score > 6).sort((p, q) => q[1] - p[1]).map(([one]) => one);
}

export const seriesPage = {
  name: "series",
  chart: null,
  async draw(page, controls, foot, still) {
    const keys = keysOf(param("k"));
    this.drawControls(controls, keys);
    if (!keys.length) {
      const worst = here.info.last >= 0 ? await ask("worst", { n: 12 }) : { rows: [] };
      if (!still()) return;
      fill(page, 
        make("h1.sentence", { text: words("series_empty") }),
        make("section.card", {}, make("h2", { text: words("worst_now") }), ...worst.rows.map((row) => make("p.between", {}, make("button.link.mono", { text: row.row, "data-row": row.row, onclick: () => this.add(`${row.q}/${row.row}`) }), make("span.note", { text: `${quantityName(row.q)} \u00b7 ${numberText(row.value)}` })))),
        here.info.scalars.length ? make("section.card", {}, make("h2", { text: words("scalars") }), ...here.info.scalars.map((name) => make("p", {}, make("button.link.mono", { text: name, onclick: () => this.add(`scalar/${name}`) })))) : null,
      );
      return;
    }
    const width = Math.max(280, page.clientWidth - 60);
    const answers = await Promise.all(
      keys.map(async (key) => {
        const [q, row] = [key.slice(0, key.indexOf("/")), key.slice(key.indexOf("/") + 1)];
        try {
          return await ask("series", { q, row, s: q === "scalar" ? "mean" : param("s", "norm"), from: param("from"), to: param("to"), rank: param("rank"), w: here.data ? 400 : Math.min(1200, width) });
        } catch (problem) {
          return { problem: problem.message, row, q };
        }
      }),
    );
    if (!still()) return;
    const good = answers.filter((one) => !one.problem);
    this.show(page, answers, good);
    await this.beyond(good, still);
    if (!still()) return;
    if (good.length) foot.textContent = words("series_foot", { count: good.length, steps: wholeText(good[0].to - good[0].from + 1), per: wholeText(good[0].per) }) + coarseText(good.find((one) => one.coming) ?? good[0]);
    this.coming = good.some((one) => one.coming);
  },
  async live() {
    if (!this.coming) return;
    const [page, controls, foot] = ["page", "controls", "foot"].map((id) => document.getElementById(id));
    await this.draw(page, controls, foot, () => here.page === this.name);
  },
  drawControls(controls, keys) {
    const ranks = here.info.ranks;
    fill(controls, 
      choice("s", words("statistic"), ["norm", "max_abs", "mean", "std", "min", "max", "zeros"].map((s) => [s, statName(s)]), param("s", "norm"), (s) => change({ s: s === "norm" ? null : s })),
      buttons("y", words("axis"), [["", words("auto")], ["log", words("log")], ["lin", words("linear")]], param("y"), (y) => change({ y })),
      ranks.length > 1 ? choice("rank", words("ranks"), [["", words("all_ranks", { count: ranks.length })], ...ranks.map((one) => [String(one.rank), words("rank_n", { rank: one.rank })])], param("rank"), (rank) => change({ rank })) : null,
      make("button", { id: "add", text: words("add_series"), onclick: () => document.getElementById("search")?.click() }),
      keys.length ? make("button", { text: words("clear"), onclick: () => change({ k: null }, { push: true }) }) : null,
      make("button", { id: "showtable", text: words("as_table"), "aria-pressed": param("table") ? "true" : "false", onclick: () => change({ table: param("table") ? null : "1" }) }),
    );
  },
  add(key) {
    const keys = keysOf(param("k"));
    if (!keys.includes(key)) change({ k: [...keys, key].join("|") }, { push: true });
  },
  lines(good) {
    const lines = [];
    for (const one of good) {
      const name = plainName(one.row);
      const grey = good.length > 8;
      const style = () => (grey ? colour("line-strong") : lineColour(lines.length));
      if (one.ranks.length > RANKS_SHOWN && good.length === 1) {
        const far = outliersOf(one.ranks, one.w).slice(0, RANKS_SHOWN - 1);
        lines.push({ label: `${one.q}/${name}`, name, q: one.q, row: one.row, style: style(), ...bandOf(one.ranks.filter((rank) => !far.includes(rank)), one.w, 0.1) });
        for (const rank of far) lines.push({ label: `${one.q}/${name} ${rank.rank}`, name: words("rank_n", { rank: rank.rank }), q: one.q, row: one.row, style: style(), ...rank.v });
      } else if (one.ranks.length > 1 && good.length > 1) {
        lines.push({ label: `${one.q}/${name}`, name, q: one.q, row: one.row, style: style(), ...bandOf(one.ranks, one.w) });
      } else {
        for (const rank of one.ranks) lines.push({ label: `${one.q}/${name} ${rank.rank}`, name: one.ranks.length > 1 ? words("rank_n", { rank: rank.rank }) : name, q: one.q, row: one.row, style: style(), ...rank.v });
      }
    }
    return lines;
  },
  isLog(lines) {
    if (param("y")) return param("y") === "log";
    let low = Infinity;
    let high = -Infinity;
    for (const line of lines) {
      for (const value of line.min) if (value !== null) low = Math.min(low, value);
      for (const value of line.max) if (value !== null) high = Math.max(high, value);
    }
    return low > 0 && high / low > 50;
  },
  show(page, answers, good) {
    const lines = this.lines(good);
    const log = this.isLog(lines);
    const host = make("div.lines", { id: "lines", tabindex: 0, role: "img", "aria-label": words("chart_of", { name: good.map((one) => one.row).join(", ") }) });
    const legend = make("div.keys", { id: "keys" });
    const readout = make("p.readout.mono", { id: "readout", text: words("zoom_hint") });
    const title = good.length === 1 ? `${good[0].q === "scalar" ? "" : `${statName(param("s", "norm"))} \u00b7 `}${plainName(good[0].row)}` : words("n_series", { count: good.length });
    fill(page, 
      make("h1.sentence.mono", { text: title }),
      ...answers.filter((one) => one.problem).map((one) => make("p.problem", { text: `${one.q}/${one.row}: ${one.problem}` })),
      make("section.card", {}, host, readout, this.ranksNote(good), legend),
      make("div", { id: "beyond" }),
      make("div", { id: "values" }),
    );
    if (!good.length) return;
    const marks = incidentMarks();
    const step = numberParam("step");
    if (step !== null) marks.push({ step, style: colour("accent") });
    const limit = good.length === 1 ? LIMITS[dtypeText(good[0].dtype)] : undefined;
    const frame = good[0];
    const draw = () => {
      this.chart?.destroy();
      this.chart = showLines(host, {
        from: frame.from,
        per: frame.per,
        w: frame.w,
        lines,
        log,
        marks,
        limits: limit ? [{ label: limit[0], value: limit[1] }] : [],
        onZoom: (from, to) => change({ from, to }, { push: true }),
        onClick: (at) => change({ step: at }),
        onHover: (bucket) => {
          if (bucket === null || bucket === undefined) return;
          const at = frame.from + bucket * frame.per;
          readout.textContent = `${words("step_n", { step: wholeText(at) })} \u00b7 ${lines.slice(0, 6).map((line) => `${lines.length > 1 ? `${fitName(line.name, 30)} ` : ""}${numberText(trackValue(line, bucket))}`).join(" \u00b7 ")}`;
        },
      });
    };
    if (here.data) setTimeout(draw, 0);
    else draw();
    fill(legend, 
      ...lines.map((line) => {
        const swatch = make("i.swatch");
        swatch.style.background = line.style;
        const odd = line.odd.reduce((sum, one) => sum + one[1] + one[2], 0);
        return make("div.keyrow", {}, swatch, make("span.mono", { text: lines.length > 1 || good.length > 1 ? `${line.name}` : line.name, title: line.row }), make("span.note", { text: quantityName(line.q) }), odd ? make("b.bad", { text: words("n_odd", { count: wholeText(odd) }) }) : null, make("button.link", { text: "\u00d7", "aria-label": words("remove"), onclick: () => change({ k: keysOf(param("k")).filter((key) => key !== `${line.q}/${line.row}`).join("|") }, { push: true }) }));
      }),
    );
    if (param("table")) this.table(lines, frame);
  },
  ranksNote(good) {
    if (good.length !== 1 || good[0].ranks.length <= RANKS_SHOWN) return null;
    const far = outliersOf(good[0].ranks, good[0].w).map((one) => one.rank);
    return make("p.note", { id: "outliers", "data-ranks": far.join(","), text: words(far.length ? "outliers_note" : "no_outliers_note", { count: good[0].ranks.length, ranks: far.slice(0, 20).join(", ") }) });
  },
  /** Histograms and micro steps of a series that is alone. */
  async beyond(good, still) {
    if (here.data || good.length !== 1) return;
    const [one] = good;
    const cards = await Promise.all([one.exponents ? histogramCard(one, "exponents") : null, one.values ? histogramCard(one, "values") : null, numberParam("step") !== null ? microCard(one, numberParam("step")) : null]);
    if (!still()) return;
    fill(document.getElementById("beyond"), ...cards.map((card) => card?.card));
    for (const card of cards) card?.draw();
  },
  table(lines, frame) {
    const rows = [];
    for (let i = frame.w - 1; i >= 0 && rows.length < 200; i--) {
      const cells = lines.map((line) => trackValue(line, i));
      if (cells.some((value) => value !== null)) rows.push([frame.from + i * frame.per, ...cells]);
    }
    const csv = () => [["step", ...lines.map((line) => line.label)], ...rows].map((row) => row.map((cell) => (typeof cell === "string" ? `"${cell.replaceAll('"', '""')}"` : String(cell ?? ""))).join(",")).join("\n");
    fill(document.getElementById("values"), 
      make("section.card", {}, make("p.between", {}, make("h2", { text: words("values") }), make("button", { text: words("copy_csv"), onclick: () => navigator.clipboard?.writeText(csv()) })), make("div.scroll", {}, make("table", {}, make("thead", {}, make("tr", {}, make("th", { text: words("step") }), ...lines.map((line) => make("th.mono", { text: fitName(line.name, 40) })))), make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell, i) => make(Number.isFinite(cell) || cell === null ? "td.mono" : "td.mono.bad", { text: i === 0 ? wholeText(cell) : numberText(cell, 6) })))))))),
    );
  },
  key(event) {
    if (event.key === "m") change({ step: numberParam("step") === null ? here.info.last : null });
    else if (event.key === "v") change({ table: param("table") ? null : "1" });
    else if (event.key === "Escape" || event.key === "0") change({ from: null, to: null, step: null });
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") change({ step: Math.max(here.info.first, Math.min(here.info.last, (numberParam("step") ?? here.info.last) + (event.key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? 10 : 1))) });
    else return false;
    return true;
  },
  leave() {
    this.chart?.destroy();
    this.chart = null;
  },
};

export function secondsText(value) {
  return isOdd(value) ? value : timeText(value);
}
