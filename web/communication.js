// Communication: is it the network, or one machine?
import { ask, change, colour, fill, here, linkTo, make, numberParam, param, words } from "./state.js";
import { numberText, shareText, sizeText, timeText, wholeText } from "./format.js";
import { hatch, lineColour, paintCells, sizeCanvas } from "./draw.js";

const SIZES = ["< 1 KiB", "< 16 KiB", "< 256 KiB", "< 4 MiB", "< 64 MiB", "< 1 GiB", "\u2265 1 GiB"];
const LABEL = 66;

/** "dp of ranks 0-3" as it is recorded: "dp:0-3". */
function groupText(group) {
  const at = group.lastIndexOf(":");
  return at < 0 ? group : words("group_of", { name: group.slice(0, at), ranks: group.slice(at + 1) });
}

function waitingSentence(found) {
  if (!found.calls) return words("no_collective");
  if (!found.agree) return words("ranks_disagree");
  const judged = found.ranks.filter((one) => one.aligned && one.uncertainty >= 0 && one.calls);
  const worst = [...judged].sort((a, b) => b.score - a.score)[0];
  if (judged.length < 2 || !(worst.score > 0)) return words("nobody_waited_for");
  const others = judged.filter((one) => one !== worst).reduce((sum, one) => sum + one.score, 0) / (judged.length - 1);
  const parts = { rank: worst.rank, share: shareText(worst.score, 1), delay: timeText(worst.delay / (found.to - found.from + 1)) };
  return words(worst.score > 2 * others && worst.score > 0.1 ? "waited_for" : "waited_evenly", parts);
}

/** A number with a bar behind it. */
function barCell(text, share) {
  const bar = make("i");
  bar.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  return make("td.mono.barcell", {}, make("span.behind", { "aria-hidden": "true" }, bar), make("span", { text }));
}

function operationTable(found) {
  const steps = found.to - found.from + 1;
  const ranks = Math.max(1, found.ranks.length);
  const rows = [...found.rows].sort((a, b) => b.waiting - a.waiting || b.seconds - a.seconds || b.bytes - a.bytes);
  const most = (value) => Math.max(1e-300, ...rows.map((row) => value(row)).filter(Number.isFinite));
  const mean = (row) => (row.timed ? row.seconds / row.timed : NaN);
  const top = { bytes: most((row) => row.bytes / row.calls), mean: most(mean), longest: most((row) => row.longest), bus: most((row) => Number(row.bus)) };
  const speed = (value) => (typeof value === "number" ? `${sizeText(value)}/s` : "\u2014");
  return make(
    "div.scroll",
    {},
    make(
      "table",
      { id: "collectives" },
      make("thead", {}, make("tr", {}, ...["operation", "group", "size_class", "calls_a_step", "bytes_a_call", "mean_time", "longest", "waiting_share", "alg_bandwidth", "bus_bandwidth"].map((one) => make("th", { text: words(one) })))),
      make(
        "tbody",
        {},
        ...rows.map((row) =>
          make(
            "tr",
            { "data-op": row.op, "data-group": row.group, "data-size": row.size, "data-calls": row.calls },
            make("td.mono", { text: row.op }),
            make("td", { text: groupText(row.group) }),
            make("td.mono", { text: SIZES[row.size] ?? "" }),
            make("td.mono", { text: numberText(row.calls / steps / ranks, 3) }),
            barCell(sizeText(row.bytes / row.calls), row.bytes / row.calls / top.bytes),
            barCell(row.timed ? timeText(mean(row)) : "\u2014", mean(row) / top.mean || 0),
            barCell(row.timed ? timeText(row.longest) : "\u2014", row.longest / top.longest || 0),
            barCell(row.timed ? shareText(row.waiting, row.seconds) : "\u2014", row.seconds ? row.waiting / row.seconds : 0),
            make("td.mono", { text: speed(row.alg) }),
            barCell(speed(row.bus), Number(row.bus) / top.bus || 0),
          ),
        ),
      ),
    ),
  );
}

/** Bytes of a map: shares of the largest value of both pictures. */
function secondsCells(found, name, most) {
  const cells = new Uint8Array(found.w * found.ranks.length);
  found.ranks.forEach((one, r) => one[name].forEach((value, i) => (cells[r * found.w + i] = one.aligned ? Math.round(125 + (124 * value) / most) : 254)));
  return { w: found.w, h: found.ranks.length, cells };
}

export const communicationPage = {
  name: "communication",
  async draw(page, controls, foot, still) {
    fill(controls, param("from") || param("to") ? make("button", { id: "whole", text: words("whole_run"), onclick: () => change({ from: null, to: null, step: null }, { push: true }) }) : null);
    const width = Math.max(240, page.clientWidth - 60);
    const found = await ask("communication", { from: param("from"), to: param("to"), w: here.data ? 300 : Math.min(400, Math.floor((width - LABEL) / 3)) });
    if (!still()) return;
    const step = numberParam("step");
    const lanes = step !== null && found.calls ? await ask("communication", { step }) : null;
    if (!still()) return;
    if (!found.calls) {
      fill(page, make("h1.sentence", { id: "sentence", text: waitingSentence(found) }), make("p.lead", { text: words("no_collective_hint") }));
      return;
    }
    const both = here.data || page.clientWidth < 900 ? "div" : "div.pair";
    const waited = make("section.card", { id: "waited" }, make("p.between", {}, make("h2", { text: words("who_waits") }), make("span.note", { text: words("who_waits_note") })));
    const behind = make("section.card", { id: "behind" }, make("p.between", {}, make("h2", { text: words("who_is_waited_for") }), make("span.note", { text: words("who_is_waited_for_note") })));
    const lanecard = lanes ? make("section.card", { id: "lanes", "data-step": lanes.step, "data-calls": lanes.lanes.length }, make("p.between", {}, make("h2", { text: words("lanes_of", { step: wholeText(lanes.step) }) }), make("span.note", { text: words("lanes_note") }))) : null;
    fill(
      page,
      make("h1.sentence", { id: "sentence", text: waitingSentence(found) }),
      found.agree ? null : make("section.card", { id: "disagreement" }, make("h2", { text: words("where_they_part") }), make("pre.mono", { text: found.disagreement })),
      found.boxes ? make("p.note", { text: words("boxes_left", { count: found.boxes }) }) : null,
      found.ranks.length > 1 ? make(both, {}, waited, behind) : null,
      lanecard ?? (found.ranks.length > 1 && !here.data ? make("p.note.hint", { text: words("lanes_hint") }) : null),
      make("section.card", {}, make("h2", { text: words("operations") }), operationTable(found)),
      found.ranks.length > 1 ? this.clocks(found) : null,
    );
    if (found.ranks.length > 1) {
      const most = Math.max(1e-9, ...found.ranks.flatMap((one) => [...one.waited, ...one.behind]));
      this.drawMap(waited, found, "waited", most);
      this.drawMap(behind, found, "behind", most);
    }
    if (lanecard) this.drawLanes(lanecard, lanes);
    const all = found.from <= found.first && found.to >= found.last;
    foot.textContent = words(all ? "comm_foot_all" : "comm_foot", { calls: wholeText(found.calls), from: wholeText(found.from), to: wholeText(found.to), last: wholeText(found.last) });
  },
  clocks(found) {
    return make(
      "section.card",
      {},
      make("p.between", {}, make("h2", { text: words("all_ranks_title") }), make("span.note", { text: words("score_note") })),
      make(
        "div.scroll",
        {},
        make(
          "table",
          { id: "stragglers" },
          make("thead", {}, make("tr", {}, ...["rank", "calls", "came_last", "delay", "score", "clock"].map((one) => make("th", { text: words(one) })))),
          make(
            "tbody",
            {},
            ...found.ranks.map((one) =>
              make(
                "tr",
                { "data-rank": one.rank, "data-last": one.last },
                make("td.mono", { text: one.rank }),
                ...(one.aligned && one.uncertainty >= 0
                  ? [make("td.mono", { text: wholeText(one.calls) }), make("td.mono", { text: wholeText(one.last) }), make("td.mono", { text: timeText(one.delay) }), barCell(numberText(one.score, 3), one.score), make("td.mono", { text: `${one.offset < 0 ? "\u2212" : ""}${one.offset ? timeText(Math.abs(one.offset)) : "0"} \u00b1 ${one.uncertainty ? timeText(one.uncertainty) : "0"}` })]
                  : [make("td.note", { colspan: 5, text: words(one.aligned ? "clock_drifts" : "no_common_call") })]),
              ),
            ),
          ),
        ),
      ),
    );
  },
  drawMap(card, found, name, most) {
    const canvas = make("canvas", { role: "img", tabindex: 0, "aria-label": words(name === "waited" ? "who_waits" : "who_is_waited_for"), "data-name": name });
    const tag = make("p.note.readout", { text: `0 \u2026 ${timeText(most)}` });
    card.append(canvas, tag);
    const width = Math.max(220, card.clientWidth - 30);
    const h = found.ranks.length;
    const each = Math.max(4, Math.min(20, Math.floor(320 / h)));
    const context = sizeCanvas(canvas, width, h * each + 20);
    const box = { x: LABEL, y: 2, width: width - LABEL - 4, height: h * each };
    paintCells(context, secondsCells(found, name, most), "distance", box);
    context.font = `11px ${colour("sans")}`;
    context.textBaseline = "middle";
    context.fillStyle = colour("secondary");
    found.ranks.forEach((rank, i) => {
      if (each >= 10 || i % Math.ceil(10 / each) === 0) context.fillText(words("rank_n", { rank: rank.rank }), 0, box.y + (i + 0.5) * each);
    });
    context.textBaseline = "top";
    context.fillStyle = colour("faint");
    context.fillText(wholeText(found.from), box.x, box.y + box.height + 5);
    context.textAlign = "right";
    context.fillText(wholeText(found.to), box.x + box.width, box.y + box.height + 5);
    const at = (event) => {
      const column = Math.floor(((event.offsetX - box.x) / box.width) * found.w);
      const row = Math.floor((event.offsetY - box.y) / each);
      return column >= 0 && column < found.w && row >= 0 && row < h ? { column, row } : null;
    };
    const stepsOf = (column) => [found.from + column * found.per, Math.min(found.to, found.from + (column + 1) * found.per - 1)];
    canvas.addEventListener("pointermove", (event) => {
      const cell = at(event);
      if (!cell) return;
      const [first, last] = stepsOf(cell.column);
      tag.textContent = `${words("rank_n", { rank: found.ranks[cell.row].rank })} \u00b7 ${words("step_n", { step: first === last ? wholeText(first) : `${wholeText(first)}\u2013${wholeText(last)}` })} \u00b7 ${timeText(found.ranks[cell.row][name][cell.column])}`;
    });
    canvas.addEventListener("click", (event) => {
      const cell = at(event);
      if (!cell || here.data) return;
      const [first, last] = stepsOf(cell.column);
      if (first === last) change({ step: first }, { push: true });
      else change({ from: first, to: last, step: null }, { push: true });
    });
  },
  /** A step's calls, a lane for each rank: from issue to end, and of it what somebody waited. */
  drawLanes(card, found) {
    const ranks = here.info.ranks.map((one) => one.rank);
    const canvas = make("canvas", { role: "img", "aria-label": words("lanes_of", { step: found.step }) });
    const tag = make("p.note.readout", { text: words("lanes_read") });
    const open = (call) => typeof call.took !== "number";
    const end = Math.max(1e-6, ...found.lanes.map((call) => call.at + (open(call) ? 0 : call.took))) * 1.02;
    const width = Math.max(220, card.clientWidth - 30);
    const each = Math.max(12, Math.min(30, Math.floor(480 / ranks.length)));
    card.append(canvas, tag);
    const context = sizeCanvas(canvas, width, ranks.length * each + 22);
    const xOf = (seconds) => LABEL + (seconds / end) * (width - LABEL - 6);
    const ops = [...new Set(found.lanes.map((call) => call.op))];
    const boxes = [];
    context.font = `11px ${colour("sans")}`;
    context.textBaseline = "middle";
    ranks.forEach((rank, i) => {
      context.fillStyle = colour("secondary");
      context.fillText(words("rank_n", { rank }), 0, (i + 0.5) * each);
      context.fillStyle = colour("line");
      context.fillRect(LABEL, (i + 1) * each - 1, width - LABEL, 1);
    });
    const before = new Map();
    for (const call of found.lanes) {
      const lane = ranks.indexOf(call.rank);
      if (lane < 0) continue;
      const x = xOf(call.at);
      const wide = Math.max(2, (open(call) ? xOf(end) : xOf(call.at + call.took)) - x);
      const y = lane * each + 3;
      const tall = each - 7;
      context.fillStyle = lineColour(ops.indexOf(call.op));
      context.globalAlpha = open(call) ? 0.15 : 0.45;
      context.fillRect(x, y, wide, tall);
      context.globalAlpha = 1;
      if (open(call)) hatch(context, x, y, wide, tall, colour("odd"));
      else if (call.waiting > 0) {
        const from = xOf(call.at + Math.max(0, call.took - call.waiting));
        context.fillRect(from, y, Math.max(1, x + wide - from), tall);
      }
      context.fillRect(x, y, 2, tall);
      const other = before.get(`${call.group}/${call.n}`);
      if (other && other.lane !== lane) {
        context.strokeStyle = colour("line-strong");
        context.beginPath();
        context.moveTo(other.x, other.lane * each + each - 4);
        context.lineTo(x, lane * each + 3);
        context.stroke();
      }
      before.set(`${call.group}/${call.n}`, { lane, x });
      boxes.push({ x, y, wide, tall, call });
    }
    context.textBaseline = "top";
    context.fillStyle = colour("faint");
    context.fillText("0", LABEL, ranks.length * each + 5);
    context.textAlign = "right";
    context.fillText(timeText(end), width - 6, ranks.length * each + 5);
    canvas.addEventListener("pointermove", (event) => {
      const hit = [...boxes].reverse().find((one) => event.offsetX >= one.x - 2 && event.offsetX <= one.x + one.wide + 2 && event.offsetY >= one.y && event.offsetY <= one.y + one.tall);
      if (!hit) return;
      const { call } = hit;
      tag.textContent = [words("rank_n", { rank: call.rank }), call.op, groupText(call.group), `#${wholeText(call.n)}`, sizeText(call.bytes), open(call) ? words("not_ended") : `${timeText(call.took)}${call.polled ? ` (${words("at_most")})` : ""}`, call.waiting ? words("of_it_waiting", { time: timeText(call.waiting) }) : "", call.failed ? words("call_failed") : "", call.location ?? ""].filter(Boolean).join(" \u00b7 ");
    });
    const swatches = ops.map((op, i) => {
      const swatch = make("i.swatch");
      swatch.style.background = lineColour(i);
      return make("span.key", {}, swatch, op);
    });
    card.append(make("div.legend", {}, ...swatches, make("a", { href: linkTo("map", { step: found.step, from: Math.max(here.info.first, found.step - 50), to: Math.min(here.info.last, found.step + 50) }), text: words("show_on_map") })));
  },
  key(event) {
    const step = numberParam("step");
    if (event.key === "Escape" || event.key === "0") change({ from: null, to: null, step: null });
    else if (step !== null && (event.key === "ArrowLeft" || event.key === "ArrowRight")) change({ step: Math.max(here.info.first, Math.min(here.info.last, step + (event.key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? 10 : 1))) });
    else return false;
    return true;
  },
};
