// Incidents: what first, why, and what now?
import { ask, askMap, change, colour, dotted, fill, here, linkTo, make, numberParam, param, quantityName, words } from "./state.js";
import { clockText, distanceText, dtypeText, numberText, plainName, shareText, statName, wholeText } from "./format.js";
import { lineChart, lineColour, paintCells, sizeCanvas } from "./draw.js";
import { incidentRow, incidentTitle } from "./run.js";

const BEFORE = 60;
const AFTER = 19;

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

/** Evidence: [holds, sentence]. */
export function evidenceOf(incident, line) {
  const facts = incident.facts;
  const found = [];
  if (!facts) return found;
  const producer = incident.path?.find((one) => one.part === "producer");
  if (incident.kind === "nonfinite" && producer) {
    found.push([facts.bad_before === 0, words(facts.bad_before === 0 ? "e_clean_before" : "e_bad_before", { count: wholeText(facts.bad_before === 0 ? facts.before : facts.bad_before) })]);
    for (const weight of facts.weights) {
      const bad = weight.nan + weight.pos_inf + weight.neg_inf;
      if (bad) found.push([true, words("e_weight_bad", { row: weight.row, bad: wholeText(bad), count: wholeText(weight.count) })]);
      else if (Math.abs(weight.distance) > 12) found.push([true, words("e_weight_far", { row: weight.row, distance: distanceText(weight.distance) })]);
    }
    if (facts.weights.length && facts.weights.every((one) => one.nan + one.pos_inf + one.neg_inf === 0)) found.push([false, words("e_weights_fine")]);
    if (typeof facts.limit === "number") {
      const near = typeof facts.largest === "number" && facts.largest > 0.25 * facts.limit;
      found.push([near, words(near ? "e_near_limit" : "e_far_from_limit", { largest: numberText(facts.largest), dtype: dtypeText(producer.dtype), limit: numberText(facts.limit) })]);
    }
  } else if (producer) {
    found.push([true, words("e_distance", { rule: incident.rule, text: incident.text })]);
    for (const weight of facts.weights) if (Math.abs(weight.distance) > 12) found.push([true, words("e_weight_far", { row: weight.row, distance: distanceText(weight.distance) })]);
  }
  if (line) {
    const values = line.v.last.filter((value) => value !== null);
    const first = values[0];
    const last = values[values.length - 1];
    if (values.length > 8 && first > 0 && last > 0) {
      const grew = last / first;
      found.push([grew > 2 || grew < 0.5, grew > 2 ? words("e_grew", { factor: numberText(grew, 3), steps: values.length }) : grew < 0.5 ? words("e_shrank", { factor: numberText(1 / grew, 3), steps: values.length }) : words("e_steady", { steps: values.length })]);
    }
  }
  if (here.info.ranks.length > 1) found.push([incident.ranks.length === 1, incident.ranks.length === 1 ? words("e_one_rank", { rank: incident.rank, count: here.info.ranks.length }) : words("e_ranks", { ranks: incident.ranks.join(", ") })]);
  if (facts.skipped) found.push([true, words("e_skipped")]);
  return found;
}

/** Its title as a sentence; a name keeps its letters. */
function sentenceOf(incident) {
  const title = incidentTitle(incident);
  return title.startsWith(incident.row) ? title : title[0].toUpperCase() + title.slice(1);
}

/** At most three things to do, the cheapest first. */
export function adviceFor(incident) {
  const list = [];
  const weight = (incident.facts?.weights ?? []).find((one) => one.nan + one.pos_inf + one.neg_inf > 0 || Math.abs(one.distance) > 12);
  if (incident.kind === "nonfinite") {
    if (weight) list.push(words("a_restore", { row: weight.row, step: wholeText(Math.max(0, incident.step - 1)) }));
    else list.push(words("a_skip"));
    const limit = incident.facts?.limit;
    if (typeof limit === "number" && limit < 1e5) list.push(words("a_dtype", { row: incident.name }));
    list.push(words("a_rule", { name: incident.name }));
  } else if (incident.kind === "still") {
    list.push(words("a_still", { row: incident.row }));
  } else {
    if (weight) list.push(words("a_restore", { row: weight.row, step: wholeText(Math.max(0, incident.step - 1)) }));
    list.push(words("a_batch", { step: wholeText(incident.step) }));
    list.push(words("a_clip"));
  }
  return list.slice(0, 3);
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
    const own = line?.ranks.find((one) => one.rank === incident.rank) ?? line?.ranks[0];
    const earlier = own && { v: { ...own.v, last: own.v.last.filter((value, i) => line.from + i * line.per < incident.step) } };
    const bad = producer ? producer.nan + producer.pos_inf + producer.neg_inf : 0;
    const evidence = evidenceOf(incident, earlier);
    const section = make(
      "article.incidentpage",
      { "data-i": incident.n, "data-row": incident.row, "data-step": incident.step },
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
          make("div.pair", {}, make("section.card", {}, make("h2", { text: words("why") }), make("ul.evidence", {}, ...evidence.map(([holds, text]) => make("li", { "data-holds": holds ? "yes" : "no", text })))), make("section.card", {}, make("h2", { text: words("try") }), make("ol", {}, ...adviceFor(incident).map((text) => make("li", { text }))), here.data ? null : make("p", {}, make("a", { id: "onmap", href: linkTo("map", { q: incident.q, side: incident.row.endsWith(".input") ? "all" : undefined, at: `${incident.row},${incident.step},${incident.rank}` }), text: words("show_on_map") })))),
        ),
      ),
    );
    if (here.data) page.append(section);
    else fill(page, section);
    if (line) this.drawBefore(before, line, incident, facts, producer);
    await this.drawRanks(section.querySelector("#ranks"), incident);
  },
  drawBefore(canvas, line, incident, facts, producer) {
    const tracks = line.ranks.map((one) => ({ ...one.v, style: one.rank === incident.rank ? lineColour(0) : colour("line-strong"), width: one.rank === incident.rank ? 1.6 : 1 }));
    tracks.sort((a, b) => a.width - b.width);
    const limits = facts && typeof facts.limit === "number" && facts.limit < 1e6 ? [{ value: facts.limit, label: `${dtypeText(producer?.dtype)} max ${numberText(facts.limit)}` }] : [];
    const normal = this.normalOf(line, incident);
    lineChart(canvas, { from: line.from, per: line.per, w: line.w, tracks, limits, range: limits.map((one) => one.value), band: normal, marks: [{ step: incident.step, style: incident.kind === "nonfinite" ? colour("odd") : colour("above"), label: words("step_n", { step: wholeText(incident.step) }) }] }, { width: Math.max(260, canvas.parentElement.clientWidth - 30), height: 200, top: 20, left: 48 });
  },
  /** From the values before: their median, three MADs to both sides. */
  normalOf(line, incident) {
    const own = line.ranks.find((one) => one.rank === incident.rank) ?? line.ranks[0];
    if (!own) return null;
    const values = [];
    own.v.last.forEach((value, i) => {
      if (value !== null && line.from + i * line.per < incident.step) values.push(value);
    });
    const recent = values.slice(-64).sort((a, b) => a - b);
    if (recent.length < 8) return null;
    const median = recent[recent.length >> 1];
    const mad = recent.map((value) => Math.abs(value - median)).sort((a, b) => a - b)[recent.length >> 1];
    return [median - 3 * mad, median + 3 * mad];
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
    card.append(canvas);
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
    context.fillText(wholeText(map.to), box.x + box.width, box.y + box.height + 5);
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
