// Incidents: what first, why, and what now?
import { ask, askMap, change, colour, dotted, fill, here, linkTo, make, numberParam, param, quantityName, words } from "./state.js";
import { clockText, distanceText, dtypeText, numberText, plainName, shareText, statName, wholeText } from "./format.js";
import { lineChart, lineColour, paintCells, sizeCanvas } from "./draw.js";
import { incidentRow, incidentTitle } from "./run.js";
import { bandOf } from "./series.js";

const BEFORE = 60;
const AFTER = 19;
const RANKS_TOLD = 8;

/** What a line of the path is like, in a word. */
function stateOf(line) {
  if (line.part === "victims") return line.bad ? "NaN" : words("abnormal");
  if (line.nan) return "NaN";
  if (line.pos_inf) return "+Inf";
  if (line.neg_inf) return "\u2212Inf";
  if (line.distance > 4) return words("high");
  if (line.distance < -4) return words("low");
  return words("normal");
}

function pathLine(line, kind) {
  const bad = line.part === "victims" ? line.bad : (line.nan ?? 0) + (line.pos_inf ?? 0) + (line.neg_inf ?? 0);
  const share = line.count ? bad / line.count : 0;
  const bar = make("i");
  const far = Math.abs(line.distance ?? 0);
  bar.style.width = `${Math.max(bad || (kind !== "nonfinite" && far > 2) ? 2 : 0, 100 * (kind === "nonfinite" ? share : Math.min(1, far / 24)))}%`;
  bar.className = kind === "nonfinite" ? "odd" : line.distance < 0 ? "below" : "above";
  const name = line.part === "victims" ? words("victims_of", { q: quantityName(line.q), count: wholeText(line.modules) }) : plainName(line.row).replace(/\.output$/, "");
  const right = bad ? (share > 0.999 ? words("all") : share < 0.01 ? wholeText(bad) : shareText(bad, line.count)) : line.part === "victims" ? distanceText(line.distance) : `max ${numberText(line.max_abs, 3)}`;
  const row = line.part === "victims" ? line.from : line.row;
  return make(
    "a.pathline",
    { href: linkTo("series", { k: `${line.q}/${row}`, s: kind === "nonfinite" ? "max_abs" : undefined }), "data-part": line.part, "data-row": row, title: line.part === "victims" ? `${line.from} \u2026 ${line.to}` : line.row },
    make("span.dot", { "aria-hidden": "true" }),
    make("span.mono.name", {}, dotted(name)),
    make(bad ? "span.bad" : far > 4 ? (line.distance < 0 ? "span.below" : "span.above") : "span.note", { text: stateOf(line) }),
    make("span.bar", { "aria-hidden": "true" }, bar),
    make("span.mono.right", { text: right }),
  );
}

/** What the sentences about a cause speak of. */
function partsOf(incident) {
  const witness = incident.witness ? plainName(incident.witness) : words("before_it");
  const producer = incident.path?.find((one) => one.part === "producer");
  const limit = incident.facts?.limit;
  return { row: plainName(incident.row), name: incident.name, witness, evidence: numberText(incident.evidence), dtype: dtypeText(producer?.dtype), limit: numberText(limit), rank: incident.rank, step: wholeText(incident.step) };
}

function isBad(line) {
  return line.nan + line.pos_inf + line.neg_inf > 0;
}

function weightsLeft(incident) {
  return (incident.facts?.weights ?? []).filter((one) => isBad(one) || Math.abs(one.distance) > 12);
}

/** Evidence: [holds, sentence, address]. */
export function evidenceOf(incident, { drift, steps }) {
  const facts = incident.facts;
  const found = [];
  const parts = partsOf(incident);
  const producer = incident.path?.find((one) => one.part === "producer");
  const isOdd = incident.kind === "nonfinite";
  if (!isOdd) found.push([true, words("e_distance", { rule: incident.rule, text: incident.text })]);
  if (incident.cause !== "unknown") found.push([true, words(`c_${incident.cause}`, parts)]);
  if (incident.bits && incident.bits !== "0x0") found.push([true, words("e_element", { element: wholeText(incident.element), bits: incident.bits })]);
  if (facts?.witness && !isBad(facts.witness)) found.push([true, words("e_witness", { row: parts.witness, largest: numberText(facts.witness.max_abs) })]);
  if (isOdd && producer) {
    found.push([facts.bad_before === 0, words(facts.bad_before === 0 ? "e_clean_before" : "e_bad_before", { count: wholeText(facts.bad_before === 0 ? facts.before : facts.bad_before) })]);
    if (facts.weights.length && !facts.weights.some(isBad)) found.push([false, words("e_weights_fine")]);
    if (incident.cause !== "overflow" && typeof facts.limit === "number" && typeof facts.largest === "number") {
      const near = facts.largest > 0.25 * facts.limit;
      found.push([near, words(near ? "e_near_limit" : "e_far_from_limit", { largest: numberText(facts.largest), dtype: parts.dtype, limit: parts.limit })]);
    }
  }
  for (const weight of weightsLeft(incident)) {
    if (isBad(weight)) found.push([true, words("e_weight_bad", { row: weight.row, bad: wholeText(weight.nan + weight.pos_inf + weight.neg_inf), count: wholeText(weight.count) })]);
    else found.push([true, words("e_weight_far", { row: weight.row, distance: distanceText(weight.distance) })]);
  }
  if (drift) found.push([true, words("e_drift", { steps: wholeText(incident.step - drift), step: wholeText(drift) })]);
  else if (steps > 16) found.push([false, words("e_steady", { steps: wholeText(steps) })]);
  if (here.info.ranks.length > 1) found.push([true, incident.ranks.length === 1 ? words("e_one_rank", { rank: incident.rank, count: here.info.ranks.length }) : words("e_rank_first", { rank: incident.rank, ranks: rankList(incident.ranks.filter((rank) => rank !== incident.rank)) })]);
  if (facts?.skipped && incident.cause !== "loss_scale") found.push([true, words("e_skipped")]);
  if (incident.parent) found.push([true, words("e_parent", { n: incident.parent }), linkTo("incidents", { i: incident.parent })]);
  return found;
}

/** Its title as a sentence; a name keeps its letters. */
function sentenceOf(incident) {
  const title = incidentTitle(incident);
  const cause = incident.cause === "unknown" ? "" : `${here.lang === "zh" ? "\uff1a" : ": "}${words(`s_${incident.cause}`, partsOf(incident))}`;
  return (title.startsWith(plainName(incident.row)) ? title : title[0].toUpperCase() + title.slice(1)) + cause;
}

/** What each cause asks for first. */
const ADVICE = {
  bad_batch: ["a_data"],
  weight: ["a_writers", "a_memory"],
  flipped_bit: ["a_memory"],
  overflow: ["a_dtype", "a_scale"],
  zero_by_zero: ["a_eps"],
  log: ["a_clamp"],
  empty: ["a_empty"],
  moment: ["a_clip"],
  loss_scale: ["a_scaler"],
  loss: ["a_loss"],
  backward: ["a_loss"],
  reduction: ["a_others"],
  many_at_once: ["a_rate", "a_clip"],
};

/** At most three things to do, the cheapest first. */
export function adviceFor(incident, drift) {
  const parts = partsOf(incident);
  const weight = incident.q === "param_origin" ? incident : weightsLeft(incident)[0];
  const keys = [...(ADVICE[incident.cause] ?? [])];
  const before = { row: weight ? plainName(weight.row) : "", step: wholeText(Math.max(0, incident.step - 1)) };
  const limit = incident.facts?.limit;
  if (incident.kind === "stalled") keys.push("a_stalled");
  if (incident.kind === "still") keys.push("a_still");
  if (weight) keys.push("a_restore");
  if (incident.kind === "nonfinite") {
    if (typeof limit === "number" && limit < 1e5) keys.push("a_dtype");
    keys.push("a_skip");
  } else if (incident.rule === "ReplicaDrift") keys.push("a_replica");
  else if (incident.kind === "range") keys.push("a_batch", "a_clip");
  const list = [...new Set(keys)].slice(0, drift ? 2 : 3).map((key) => words(key, key === "a_restore" ? before : parts));
  if (drift) list.push(words("a_rule", { name: incident.name }));
  return list;
}

/** "0–3, 7" */
function rankList(ranks) {
  const parts = [];
  for (const rank of ranks) {
    const last = parts[parts.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : `${a}\u2013${b}`)).join(", ");
}

export const incidentPage = {
  name: "incidents",
  async draw(page, controls, foot, still) {
    fill(controls);
    const number = numberParam("i");
    if (number === null) {
      fill(page, 
        make("h1.sentence", { text: here.incidents.length ? words("n_incidents", { count: here.incidents.length }) : words("no_incident") }),
        make("section.card", { id: "incidents" }, ...[...here.incidents].reverse().map(incidentRow)),
      );
      foot.textContent = words("incidents_foot");
      return;
    }
    const incident = await ask("incident", { i: number });
    if (!still()) return;
    await this.show(page, incident, still);
    foot.textContent = words("incident_foot", { alerts: wholeText(incident.alerts), series: wholeText(incident.series), steps: wholeText(incident.steps) });
  },
  async show(page, incident, still) {
    const stat = incident.q === "scalar" ? "mean" : incident.kind === "nonfinite" ? "max_abs" : "norm";
    const from = Math.max(here.info.first, incident.step - 200);
    const to = Math.min(here.info.last, incident.step + 40);
    let line = null;
    try {
      line = await ask("series", { q: incident.q, row: incident.row, s: stat, from, to, w: 300 });
    } catch {
      // Its card says so.
    }
    if (!still()) return;
    const before = make("canvas", { id: "before", role: "img", "aria-label": words("chart_of", { name: incident.row }) });
    const producer = incident.path?.find((one) => one.part === "producer");
    const facts = incident.facts;
    const bad = producer ? producer.nan + producer.pos_inf + producer.neg_inf : 0;
    const history = line ? this.historyOf(line, incident) : { normal: null, drift: null, steps: 0 };
    const evidence = evidenceOf(incident, history);
    const section = make(
      "article.incidentpage",
      { "data-i": incident.n, "data-row": incident.row, "data-step": incident.step, "data-kind": incident.kind },
      make(
        "p.place",
        {},
        make("span.kind", { text: words(`k_${incident.kind}`), "data-kind": incident.kind }),
        make("span", { text: [words("n_of", { n: incident.n, of: incident.of }), words("step_n", { step: wholeText(incident.step) }), facts && facts.micro_steps > 1 ? words("micro_n", { micro: incident.micro_step }) : "", words("rank_n", { rank: incident.rank }), incident.q === "actv" ? words("forward") : quantityName(incident.q), clockText(incident.wall)].filter(Boolean).join(" \u00b7 ") }),
        here.data ? null : make("span.turn", {}, make("button", { text: words("previous"), disabled: incident.n <= 1, onclick: () => this.turn(incident, -1) }), make("button", { text: words("next"), disabled: incident.n >= incident.of, onclick: () => this.turn(incident, 1) })),
      ),
      make("h1.sentence", { id: "sentence", text: sentenceOf(incident) }),
      make("p.lead", { text: producer && bad ? words("lead_nonfinite", { bad: wholeText(bad), count: wholeText(producer.count), after: wholeText(incident.in_first - 1), series: wholeText(incident.series) }) : words("lead_range", { text: incident.text, after: wholeText(incident.in_first - 1), series: wholeText(incident.series) }) }),
      make(
        "div.columns",
        {},
        make(
          "div.column",
          {},
          make("section.card", {}, make("p.between", {}, make("h2", { text: words("path") }), make("span.note", { text: words("path_note", { rank: incident.rank }) })), make("div.path", { id: "path" }, ...(incident.path ?? []).map((one) => pathLine(one, incident.kind)))),
          make("section.card", { id: "ranks" }, make("p.between", {}, make("h2", { text: words("all_ranks_title") }), make("span.note", { text: words("ranks_note", { before: BEFORE, after: AFTER }) }))),
        ),
        make(
          "div.column",
          {},
          make("section.card", {}, make("p.between", {}, make("h2", { text: words("before_after") }), make("a.note", { href: linkTo("series", { k: `${incident.q}/${incident.row}`, s: stat, step: incident.step }), text: words("open_as_series", { name: statName(stat) }) })), before),
          make("div.pair", {}, make("section.card", {}, make("h2", { text: words("why") }), make("ul.evidence", {}, ...evidence.map(([holds, text, href]) => make("li", { "data-holds": holds ? "yes" : "no" }, href ? make("a", { href, text }) : text)))), make("section.card", {}, make("h2", { text: words("try") }), make("ol", {}, ...adviceFor(incident, history.drift).map((text) => make("li", { text }))), here.data ? null : make("p", {}, make("a", { id: "onmap", href: linkTo("map", { q: incident.q, side: incident.row.endsWith(".input") ? "all" : undefined, at: `${incident.row},${incident.step},${incident.rank}` }), text: words("show_on_map") })))),
          make("section.card", {}, make("p.between", {}, make("h2", { text: words("in_one_line") }), here.data ? null : make("button.link", { text: words("copy"), onclick: () => navigator.clipboard?.writeText(incident.said) })), make("p.said", { text: incident.said })),
        ),
      ),
    );
    if (here.data) page.append(section);
    else fill(page, section);
    if (line) this.drawBefore(before, line, incident, facts, producer, history);
    await this.drawRanks(section.querySelector("#ranks"), incident);
    if (incident.kind === "range" && !here.data) await this.showWorst(section.querySelector("#ranks"), incident, still);
  },
  /** What else was far from normal then: what left its range before may have led to it. */
  async showWorst(card, incident, still) {
    const worst = await ask("worst", { step: incident.step, n: 8 });
    const rows = worst.rows.filter((row) => Math.abs(row.distance) > 6);
    if (!still() || !rows.length) return;
    card.after(make("section.card", { id: "farthest" }, make("h2", { text: words("farthest_then") }), ...rows.map((row) => make("p.between", {}, make("a.mono", { href: linkTo("series", { k: `${row.q}/${row.row}`, step: incident.step }), text: plainName(row.row) }), make("span.note", { text: `${quantityName(row.q)} \u00b7 ${distanceText(row.distance)}` })))));
  },
  drawBefore(canvas, line, incident, facts, producer, { normal, drift }) {
    const own = line.ranks.filter((one) => one.rank === incident.rank);
    const others = line.ranks.filter((one) => one.rank !== incident.rank);
    const peers = others.length > 3 ? [{ ...bandOf(others, line.w), style: colour("secondary"), width: 0.8 }] : others.map((one) => ({ ...one.v, style: colour("line-strong"), width: 1 }));
    const tracks = [...peers, ...own.map((one) => ({ ...one.v, style: lineColour(0), width: 1.6 }))];
    const limits = facts && typeof facts.limit === "number" && facts.limit < 1e6 ? [{ value: facts.limit, label: `${dtypeText(producer?.dtype)} max ${numberText(facts.limit)}` }] : [];
    const marks = [{ step: incident.step, style: incident.kind === "nonfinite" ? colour("odd") : colour("above"), label: words("step_n", { step: wholeText(incident.step) }), plain: own.some((one) => one.v.odd.some(([at]) => line.from + at * line.per === incident.step)) }];
    if (drift) marks.unshift({ step: drift, style: colour("above"), label: words("drift_begins", { step: wholeText(drift) }), below: true });
    lineChart(canvas, { from: line.from, per: line.per, w: line.w, tracks, limits, range: limits.map((one) => one.value), band: normal, marks }, { width: Math.max(260, canvas.parentElement.clientWidth - 30), height: 200, top: 20, left: 48 });
  },
  /** What was normal: [low, high] of the values before, and the step since which they have drifted away from it, if they have. */
  historyOf(line, incident) {
    const own = line.ranks.find((one) => one.rank === incident.rank) ?? line.ranks[0];
    const isLog = incident.q !== "scalar" && incident.op !== "mean";
    const values = (own?.v.last ?? []).filter((value, i) => line.from + i * line.per < incident.step).map((value) => (value === null || (isLog && value <= 0) ? null : isLog ? Math.log2(value) : value));
    const rangeOf = (some) => {
      const sorted = some.filter((value) => value !== null).sort((a, b) => a - b);
      if (sorted.length < 8) return null;
      const median = sorted[sorted.length >> 1];
      const mad = sorted.map((value) => Math.abs(value - median)).sort((a, b) => a - b)[sorted.length >> 1];
      return { median, mad: Math.max(mad, isLog ? 0.02 : 1e-30) };
    };
    const early = rangeOf(values.slice(0, Math.max(16, values.length >> 2)));
    let first = values.length;
    if (early) while (first > 0 && values[first - 1] !== null && Math.abs(values[first - 1] - early.median) > 6 * early.mad) first--;
    const last = values[values.length - 1];
    const far = early && last !== null && last !== undefined ? Math.abs(isLog ? last - early.median : (last - early.median) / (0.5 * Math.abs(early.median) || 1)) : 0;
    const drifts = values.length - first >= 5 && first >= 16 && far >= 1;
    const range = drifts ? early : rangeOf(values.slice(-64));
    const back = (value) => (isLog ? 2 ** value : value);
    return { normal: range ? [back(range.median - 3 * range.mad), back(range.median + 3 * range.mad)] : null, drift: drifts ? line.from + first * line.per : null, steps: values.filter((value) => value !== null).length };
  },
  async drawRanks(card, incident) {
    const from = Math.max(here.info.first, incident.step - BEFORE);
    const to = Math.min(here.info.last, incident.step + AFTER);
    let map;
    try {
      map = await askMap({ q: incident.q, s: incident.q === "scalar" ? "mean" : incident.kind === "nonfinite" ? "max_abs" : "norm", side: "all", rows: incident.row, cut: "rank-step", from, to, w: 80 });
    } catch (problem) {
      card.append(make("p.note", { text: problem.message }));
      return;
    }
    const canvas = make("canvas", { role: "img", "aria-label": words("all_ranks_title") });
    const parts = incident.parts.length > 1 ? incident.parts : [];
    card.append(canvas, make("div.parts", {}, ...parts.slice(0, RANKS_TOLD).map((one) => make("p.note", { text: words("first_on", { rank: one.rank, step: wholeText(one.step), row: `${plainName(one.row)} (${quantityName(one.q)})` }) })), parts.length > RANKS_TOLD ? make("p.note", { text: words("and_n_ranks", { count: parts.length - RANKS_TOLD }) }) : null));
    const width = Math.max(240, card.clientWidth - 30);
    const each = Math.max(6, Math.min(18, Math.floor(320 / map.h)));
    const context = sizeCanvas(canvas, width, map.h * each + 20);
    const box = { x: 66, y: 2, width: width - 70, height: map.h * each };
    paintCells(context, map, "distance", box);
    context.font = `11px ${colour("sans")}`;
    context.textBaseline = "middle";
    here.info.ranks.forEach((rank, i) => {
      context.fillStyle = rank.rank === incident.rank ? colour("text") : colour("secondary");
      if (each >= 10 || i % Math.ceil(10 / each) === 0) context.fillText(words("rank_n", { rank: rank.rank }), 0, box.y + (i + 0.5) * each);
    });
    context.textBaseline = "top";
    context.fillStyle = colour("faint");
    context.fillText(wholeText(map.from), box.x, box.y + box.height + 5);
    context.textAlign = "right";
    if (map.to - incident.step > 8) context.fillText(wholeText(map.to), box.x + box.width, box.y + box.height + 5);
    context.textAlign = "center";
    context.fillStyle = colour("odd");
    context.fillText(wholeText(incident.step), box.x + ((incident.step - map.from + 0.5) / (map.w * map.per)) * box.width, box.y + box.height + 5);
  },
  turn(incident, by) {
    const next = incident.n + by;
    if (next >= 1 && next <= incident.of) change({ i: next }, { push: true });
  },
  key(event) {
    const number = Number(param("i"));
    if (event.key === "[" || event.key === "]") {
      const next = (number || here.incidents.length + 1) + (event.key === "[" ? -1 : 1);
      if (next >= 1 && next <= here.incidents.length) change({ i: next }, { push: true });
      return true;
    }
    if (event.key === "Escape") {
      change({ i: null }, { push: true });
      return true;
    }
    return false;
  },
};
