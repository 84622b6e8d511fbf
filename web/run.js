// Run: is it healthy?
import { ask, change, colour, fill, go, here, linkTo, make, numberParam, quantityName, words } from "./state.js";
import { clockText, numberText, plainName, shareText, sizeText, timeText, wholeText } from "./format.js";
import { lineChart, lineColour, spark, trackValue } from "./draw.js";

export const KIND_SIGN = { nonfinite: "\u25bc", range: "\u25b2", still: "\u25ac", stalled: "\u25a0" };

export function kindStyle(kind) {
  return colour(kind === "nonfinite" || kind === "stalled" ? "odd" : kind === "range" ? "above" : "secondary");
}

/** "First NaN in blocks.1.norm2.output" */
export function incidentTitle(incident) {
  const row = plainName(incident.row);
  if (incident.kind === "nonfinite") {
    const what = incident.op === "nans" || incident.value === "NaN" ? "NaN" : numberText(incident.value);
    return words("t_nonfinite", { what, row });
  }
  if (incident.kind === "stalled") return words("t_stalled", { row, age: timeText(incident.value) });
  if (incident.kind === "still") return words(incident.rule === "AllZero" ? "t_zero" : "t_still", { row });
  if (incident.rule === "ReplicaDrift") return words("t_replica", { row: plainName(incident.parameter ?? incident.row) });
  if (incident.rule === "LossSpike") return words("t_loss", { row, from: numberText(incident.baseline), to: numberText(incident.value) });
  const up = typeof incident.value !== "number" || typeof incident.baseline !== "number" || incident.value > incident.baseline;
  return words(up ? "t_high" : "t_low", { row, from: numberText(incident.baseline), to: numberText(incident.value) });
}

/** The sentence about the whole run that a person could say aloud. */
export function healthSentence() {
  const { info, incidents } = here;
  const steps = info.last >= 0 ? info.last - info.first + 1 : 0;
  if (steps === 0) return words(info.read ? "nothing_yet" : "reading_run");
  if (incidents.length === 0) return words("healthy", { steps: wholeText(steps) });
  const last = incidents[incidents.length - 1];
  return words(incidents.length === 1 ? "one_incident" : "some_incidents", { count: incidents.length, step: wholeText(last.step), title: incidentTitle(last) });
}

export function incidentMarks(named = false) {
  return here.incidents.map((incident) => ({ step: incident.step, style: kindStyle(incident.kind), label: named ? `${incident.n}` : "" }));
}

export function incidentRow(incident) {
  const first = incident.step === incident.last ? wholeText(incident.step) : `${wholeText(incident.step)}\u2013${wholeText(incident.last)}`;
  return make(
    "a.incident",
    { href: linkTo("incidents", { i: incident.n }), "data-i": incident.n, "data-kind": incident.kind },
    make("span.sign", { text: KIND_SIGN[incident.kind], "aria-hidden": "true" }),
    make("span.number", { text: incident.n }),
    make("span.mono.step", { text: first }),
    make("span.title", { text: incidentTitle(incident) }),
    make("span.note", { text: words("spread", { series: wholeText(incident.series), alerts: wholeText(incident.alerts) }) }),
    make("span.note", { text: incident.ranks.length > 1 ? words("ranks_of", { ranks: incident.ranks.join(", ") }) : words("rank_n", { rank: incident.rank }) }),
    make("span.chip", { text: [incident.severity === "notice" ? words("notice") : "", words(incident.open ? "open" : "passed")].filter(Boolean).join(" \u00b7 "), "data-open": incident.open ? "yes" : "no" }),
  );
}

const TRACKS = [
  ["loss", 120, "loss"],
  ["gradient", 90, "gradient_norm"],
  ["rate", 54, "learning_rate"],
  ["seconds", 54, "step_time"],
];

/** Whether all is well, in a line of signs: each says in words what it stands for. */
function glance(info, line) {
  const open = here.incidents.filter((one) => one.open && one.severity !== "notice").length;
  const late = info.ranks.filter((rank) => rank.last < info.last).length;
  const health = Object.values(line.health);
  const now = health.reduce((sum, one) => sum + one.now, 0);
  const all = health.reduce((sum, one) => sum + one.all, 0);
  const sign = (isFine, text, name) => make("span.sign", { "data-fine": isFine ? "yes" : "no", "data-name": name, title: words(isFine ? "g_fine" : "g_look") }, make("i", { text: isFine ? "\u2713" : "!", "aria-label": words(isFine ? "g_fine" : "g_look") }), text);
  return make(
    "p.glance",
    { id: "glance", "aria-label": words("glance") },
    sign(!open, open ? words("g_incidents", { count: wholeText(open) }) : words("g_no_incident"), "incidents"),
    sign(now <= 0.02 * all, words("g_far", { now: wholeText(now), all: wholeText(all) }), "far"),
    sign(!late, late ? words("g_late", { late, count: info.ranks.length }) : words("g_ranks", { count: info.ranks.length }), "ranks"),
    sign(!info.cost.gaps, info.cost.gaps ? words("g_lost", { count: wholeText(info.cost.gaps) }) : words("g_whole"), "steps"),
    info.ranks.some((rank) => rank.damaged) ? sign(false, words("g_damaged"), "journal") : null,
  );
}

function costRow(info, line) {
  const cost = info.cost;
  const each = (label, value, track) => {
    const values = track ? track.max.map((one) => one ?? NaN) : [];
    const canvas = values.some(Number.isFinite) ? make("canvas", { "aria-hidden": "true" }) : null;
    if (canvas) spark(canvas, values, { width: 110, height: 22, style: colour("accent"), top: Math.max(1e-9, ...values.filter(Number.isFinite)) });
    return make("div.fact", {}, make("span.note", { text: label }), make("strong.mono", { text: value }), canvas);
  };
  const late = info.ranks.filter((rank) => rank.last < info.last).length;
  return make(
    "section.card.cost",
    { id: "cost", "aria-label": words("cost") },
    make("h2", { text: words("cost") }),
    make(
      "div.facts",
      {},
      each(words("in_hooks"), shareText(cost.hook, 1), line.hook),
      each(words("beside"), shareText(cost.writer, 1), line.writer),
      each(words("waited"), shareText(cost.wait, 1)),
      cost.bytes ? each(words("bytes_a_step"), sizeText(cost.bytes), line.bytes) : null,
      each(words("records"), wholeText(cost.records)),
      each(words("lost_steps"), cost.gaps ? `${wholeText(cost.gaps)} (${words("n_records", { count: wholeText(cost.lost) })})` : "0"),
      cost.left_out ? each(words("left_out_steps"), wholeText(cost.left_out)) : null,
      each(words("hook_errors"), wholeText(cost.errors)),
      each(words("ranks"), late ? words("ranks_late", { count: info.ranks.length, late }) : wholeText(info.ranks.length)),
    ),
  );
}

export const runPage = {
  name: "run",
  async draw(page, controls, foot, still) {
    const width = Math.max(280, page.clientWidth - 32 - 24);
    const from = here.params.get("from");
    const to = here.params.get("to");
    const line = await ask("timeline", { from, to, w: here.data ? 600 : Math.min(1200, width) });
    if (!still()) return;
    const tracks = TRACKS.filter(([name]) => line[name].last.some((value) => value !== null) || line[name].odd.length);
    const readout = make("p.readout.mono", { id: "readout", text: words("hover_hint") });
    const pinned = numberParam("step");
    const marks = incidentMarks();
    if (pinned !== null) marks.push({ step: pinned, style: colour("accent") });
    const charts = tracks.map(([name, height, label], index) => {
      const canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": words("chart_of", { name: words(label) }), id: `line-${name}` });
      return { name, height, canvas, label, last: index === tracks.length - 1, holder: make("div.track", {}, make("span.note.name", { text: name === "loss" && line.loss_name ? line.loss_name : words(label) }), canvas) };
    });
    const rail = make("div.rail", { "aria-label": words("incidents") });
    fill(page, 
      make("h1.sentence", { id: "sentence", text: healthSentence(), "data-healthy": here.incidents.length ? "no" : "yes" }),
      here.info.last >= 0 ? glance(here.info, line) : null,
      make("section.card.timeline", { "aria-label": words("time_line") }, rail, ...charts.map((chart) => chart.holder), readout),
      make(
        "section.card",
        { id: "incidents", "aria-label": words("incidents") },
        make("h2", { text: words("incidents") }),
        ...(here.incidents.length ? [...here.incidents].reverse().slice(0, 10).map(incidentRow) : [make("p.note", { text: words("no_incident") })]),
        here.incidents.length > 10 ? make("a", { href: linkTo("incidents"), text: words("all_n", { count: here.incidents.length }) }) : null,
      ),
      make(
        "section.card.health",
        { "aria-label": words("health") },
        make("h2", { text: words("health") }, make("span.note", { text: words("health_note") })),
        make("div.multiples", {}, ...Object.entries(line.health).map(([quantity, one]) => this.multiple(quantity, one))),
      ),
      costRow(here.info, line),
    );
    const drawn = charts.map((chart) => {
      const track = { ...line[chart.name], style: lineColour(0) };
      const how = lineChart(chart.canvas, { from: line.from, per: line.per, w: line.w, tracks: [track], marks, gaps: line.gaps, log: chart.name === "loss" || chart.name === "gradient" ? line[chart.name].min.every((value) => value === null || value > 0) : false }, { width, height: chart.height + (chart.last ? 16 : 0), bottom: chart.last ? 16 : 2, axis: chart.last, left: 52 });
      return { chart, track, how };
    });
    for (const incident of here.incidents) {
      if (!drawn.length || incident.step < line.from || incident.step > line.to) continue;
      const at = make("a.mark", { href: linkTo("incidents", { i: incident.n }), title: incidentTitle(incident), text: KIND_SIGN[incident.kind], "data-kind": incident.kind });
      at.style.left = `${drawn[0].how.xOf(incident.step)}px`;
      rail.append(at);
    }
    this.listen(drawn, line, readout);
    foot.textContent = words("run_foot", { steps: wholeText(line.to - line.from + 1), per: wholeText(line.per), start: new Date(here.info.start).toLocaleString(), directory: here.info.directory });
  },
  multiple(quantity, one) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const card = make("a.multiple", { href: linkTo("map", { q: quantity }), "data-q": quantity }, make("span", { text: quantityName(quantity) }), canvas, make("span.mono.note", { text: one.now ? words("abnormal_now", { now: wholeText(one.now), all: wholeText(one.all) }) : words("normal_now", { all: wholeText(one.all) }) }));
    spark(canvas, one.share, { width: 150, height: 26, top: Math.max(0.05, ...one.share) });
    return card;
  },
  /** Hover shows all values at a step, a click pins it, dragging zooms. */
  listen(drawn, line, readout) {
    const say = (bucket) => {
      const step = line.from + bucket * line.per;
      const parts = drawn.map(({ chart, track }) => `${words(chart.label)} ${chart.name === "seconds" ? timeText(trackValue(track, bucket)) : numberText(trackValue(track, bucket))}`);
      readout.textContent = `${words("step_n", { step: line.per > 1 ? `${wholeText(step)}\u2013${wholeText(Math.min(line.to, step + line.per - 1))}` : wholeText(step) })} \u00b7 ${parts.join(" \u00b7 ")}`;
    };
    for (const { chart, how } of drawn) {
      let press = null;
      const bucketAt = (event) => Math.max(0, Math.min(line.w - 1, Math.floor(((event.offsetX - how.inner.x) / how.inner.width) * line.w)));
      chart.canvas.addEventListener("pointermove", (event) => say(bucketAt(event)));
      chart.canvas.addEventListener("pointerdown", (event) => {
        press = bucketAt(event);
      });
      chart.canvas.addEventListener("pointerup", (event) => {
        const bucket = bucketAt(event);
        if (press !== null && Math.abs(bucket - press) > 2) change({ from: line.from + Math.min(press, bucket) * line.per, to: line.from + (Math.max(press, bucket) + 1) * line.per - 1 }, { push: true });
        else change({ step: line.from + bucket * line.per });
        press = null;
      });
      chart.canvas.addEventListener("dblclick", () => change({ from: null, to: null }, { push: true }));
    }
  },
  key(event) {
    if (event.key === "Enter" && numberParam("step") !== null) go("map", { step: numberParam("step") });
    else if (event.key === "Escape" || event.key === "0") change({ from: null, to: null, step: null });
    else return false;
    return true;
  },
};

export function stateText(info) {
  const walls = info.ranks.map((rank) => rank.wall).filter(Boolean);
  const newest = Math.max(0, ...walls);
  const step = wholeText(Math.max(0, info.last));
  if (!info.read && !here.data) return { live: "reading", text: words("reading", { step }) };
  if (info.ranks.length && info.ranks.every((rank) => rank.closed)) return { live: "stopped", text: words("stopped", { step, time: clockText(newest) }) };
  const age = (Date.now() - newest) / 1000;
  const usual = info.cost.steps ? info.cost.seconds / info.cost.steps : 1;
  if (age > Math.max(30, 5 * usual)) return { live: "stalled", text: words("stalled", { step, age: timeText(age) }) };
  return { live: "live", text: words("is_live", { step, age: timeText(Math.max(0, Math.round(age))) }) };
}
