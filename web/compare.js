// Compare: where do two runs part?
import { ask, askMap, change, colour, fill, here, linkTo, make, param, quantityName, words } from "./state.js";
import { fitName, numberText, plainName, rowLabel, statName, wholeText } from "./format.js";
import { lineChart, lineColour, niceSteps, paintCells, rampStyle, sizeCanvas } from "./draw.js";
import { choice, chosenQuantity, quantityOptions } from "./map.js";

const COMPARED = { max_abs: "max_abs", norm: "norm", mean: "mean", std: "std", min: "min", max: "max" };

export const comparePage = {
  name: "compare",
  async draw(page, controls, foot, still) {
    const others = here.runs.filter((one) => one.id !== here.run);
    const ranks = here.info.ranks;
    const other = param("r2") || (others[0]?.id ?? here.run);
    const sameRun = other === here.run;
    const rank = param("rank") || (sameRun && ranks.length > 1 ? String(ranks[0].rank) : "");
    const rank2 = param("rank2") || (sameRun && ranks.length > 1 ? String(ranks[1].rank) : "");
    const rankOptions = [["", words("each_rank")], ...ranks.map((one) => [String(one.rank), words("rank_n", { rank: one.rank })])];
    fill(controls, 
      choice("a", "A", here.runs.map((one) => [one.id, `${one.id} \u00b7 ${new Date(one.start).toLocaleString()}`]), here.run, (id) => location.assign(`/r/${encodeURIComponent(id)}/compare?r2=${encodeURIComponent(other)}`)),
      choice("b", "B", here.runs.map((one) => [one.id, `${one.id} \u00b7 ${new Date(one.start).toLocaleString()}`]), other, (r2) => change({ r2 }, { push: true })),
      ranks.length > 1 ? choice("rank", words("rank_of", { name: "A" }), rankOptions, rank, (value) => change({ rank: value })) : null,
      ranks.length > 1 ? choice("rank2", words("rank_of", { name: "B" }), rankOptions, rank2, (value) => change({ rank2: value })) : null,
    );
    if (sameRun && ranks.length < 2) {
      fill(page, make("h1.sentence", { text: words("nothing_to_compare") }), make("p.note", { text: words("compare_hint") }));
      return;
    }
    const found = await ask("compare", { r2: other, rank, rank2 });
    if (!still()) return;
    if (!found.differs) {
      fill(page, make("h1.sentence", { id: "sentence", text: words("no_difference", { values: wholeText(found.values), steps: wholeText(found.steps) }) }), this.leftOut(found));
      return;
    }
    const first = this.chosen(found);
    const beside = make("canvas", { id: "beside", role: "img", "aria-label": words("chart_of", { name: first.row }) });
    fill(page, 
      make("h1.sentence", { id: "sentence", "data-step": found.step, "data-row": found.rows[0].row, text: words("part_at", { step: wholeText(found.step), row: plainName(found.rows[0].row), statistic: found.rows[0].statistic, difference: typeof found.rows[0].difference === "number" ? numberText(found.rows[0].difference, 3) : `${numberText(found.rows[0].a)} / ${numberText(found.rows[0].b)}` }) }),
      make("p.lead", { text: words("part_lead", { before: wholeText(found.steps - 1), count: wholeText(found.count), in_step: wholeText(found.in_step) }) }),
      make("section.card", { id: "both", "data-row": first.row }, make("p.between", {}, make("h2.mono", { text: `${first.statistic} \u00b7 ${plainName(first.row)}` }), make("span.note", { text: words("a_and_b") })), beside),
      make("section.card", { id: "apart" }),
      make(
        "section.card",
        {},
        make("h2", { text: words("first_differences") }),
        make(
          "div.scroll",
          {},
          make(
            "table",
            { id: "differences" },
            make("thead", {}, make("tr", {}, ...["series", "quantity", "statistic", "a", "b", "difference", "tolerance"].map((one) => make("th", { text: words(one) })))),
            make("tbody", {}, ...found.rows.map((row) => make("tr", {}, make("td.mono", {}, make("a", { href: linkTo("series", { k: `${row.q}/${row.row}`, step: found.step }), text: fitName(plainName(row.row), 48), title: row.row })), make("td", { text: quantityName(row.q) }), make("td", { text: row.statistic }), ...[row.a, row.b].map((value) => make("td.mono", { text: numberText(value, 6) })), make("td.mono", { text: row.difference === "NaN" ? "\u2014" : numberText(row.difference, 3) }), make("td.mono", { text: numberText(row.tolerance) })))),
          ),
        ),
      ),
      this.leftOut(found),
    );
    await this.drawBeside(beside, first, found, other, rank, rank2);
    if (!still()) return;
    await this.drawApart(document.getElementById("apart"), { r2: other, rank, rank2 }, still);
    foot.textContent = words("compare_foot", { a: found.a, b: found.b });
  },
  leftOut(found) {
    const lost = found.only_a + found.only_b + found.only_steps_a + found.only_steps_b;
    const said = [];
    if (found.apart) said.push(words("left_apart", { count: wholeText(found.apart) }));
    if (lost) said.push(words("left_out", { a: wholeText(found.only_a), b: wholeText(found.only_b), steps_a: wholeText(found.only_steps_a), steps_b: wholeText(found.only_steps_b) }));
    return make("p.note", { text: said.join(" ") });
  },
  async drawBeside(canvas, first, found, other, rank, rank2) {
    for (let read = false; !read && !here.data; ) {
      read = (await ask("run", { r: other })).read;
      if (!read) await new Promise((resolve) => setTimeout(resolve, 200));
    }
    const of = (number) => (number < 0 ? "" : number); /* of all ranks: the first one's */
    const given = { q: first.q, row: first.row, s: COMPARED[first.statistic] ?? "norm", from: Math.max(0, first.step - 100), to: first.step + 40, w: 400 };
    try {
      const [a, b] = await Promise.all([ask("series", { ...given, rank: rank || of(first.rank_a) }), ask("series", { ...given, r: other, rank: rank2 || of(first.rank_b) })]);
      const from = Math.min(a.from, b.from);
      const w = Math.max(a.from + a.w, b.from + b.w) - from;
      const pad = (line) => {
        const track = line.ranks[0]?.v ?? { min: [], max: [], last: [], odd: [] };
        const lead = Array(line.from - from).fill(null);
        const padded = (list) => [...lead, ...list, ...Array(Math.max(0, w - lead.length - list.length)).fill(null)];
        return { min: padded(track.min), max: padded(track.max), last: padded(track.last), odd: track.odd.map(([at, ...rest]) => [at + lead.length, ...rest]) };
      };
      lineChart(canvas, { from, per: 1, w, tracks: [{ ...pad(a), style: lineColour(0), width: 1.8 }, { ...pad(b), style: lineColour(1), width: 1.2 }], marks: [{ step: first.step, style: lineColour(1), label: words("step_n", { step: wholeText(first.step) }) }] }, { width: Math.max(260, canvas.parentElement.clientWidth - 30), height: 210, top: 20, left: 52 });
    } catch (problem) {
      canvas.replaceWith(make("p.note", { text: problem.message }));
    }
  },
  /** The series that both are shown of: what differs first, or what was clicked. */
  chosen(found) {
    const [row, step] = param("at").split(",");
    return step ? { row, q: chosenQuantity(), statistic: param("s", "norm"), rank_a: found.rows[0].rank_a, rank_b: found.rows[0].rank_b, step: Number(step) } : { ...found.rows[0], step: found.step };
  },
  /** How far they are apart: series in execution order over steps. */
  async drawApart(card, given, still) {
    const s = param("s", "norm");
    const map = await askMap({ ...given, q: chosenQuantity(), s, from: param("from"), to: param("to"), w: Math.floor((card.clientWidth - 180) / 2), h: 120 }, "difference");
    if (!still()) return;
    const canvas = make("canvas", { id: "difference", role: "img", tabindex: 0, "aria-label": words("apart_label", { name: `${quantityName(chosenQuantity())}, ${statName(s)}` }) });
    const tag = make("p.note.readout", { text: words(map.compared ? "apart_hint" : "apart_none") });
    const bar = make("span.ramp");
    bar.style.background = rampStyle("distance").replace(/90deg, .*?(#[0-9a-f]{6}, #[0-9a-f]{6}, #[0-9a-f]{6}, #[0-9a-f]{6})\)$/, "90deg, $1)");
    fill(
      card,
      make("p.between", {}, make("h2", { text: words("apart") }), make("span.note", { text: words("apart_note", { differ: wholeText(map.differ), compared: wholeText(map.compared) }) })),
      make("p.row", {}, choice("q", words("quantity"), quantityOptions(), chosenQuantity(), (q) => change({ q, at: null })), choice("s", words("statistic"), ["norm", "max_abs", "std"].map((one) => [one, statName(one)]), s, (one) => change({ s: one === "norm" ? null : one }))),
      canvas,
      tag,
      make("div.legend", {}, make("span", { text: words("tolerance") }), bar, make("span", { text: words("a_million_times") }), make("span.key", {}, make("i.odd"), words("finite_in_one"))),
    );
    const left = card.clientWidth < 500 ? 84 : 148;
    const width = Math.max(220, card.clientWidth - 30);
    const each = Math.max(3, Math.min(16, Math.floor(380 / Math.max(1, map.h))));
    const box = { x: left, y: 2, width: width - left - 8, height: each * map.h };
    const context = sizeCanvas(canvas, width, box.height + 22);
    paintCells(context, map, "distance", box);
    const labels = map.rows.map((row) => rowLabel(row[0], row[1], ".output"));
    context.font = `10.5px ${colour("mono")}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colour("secondary");
    let lastY = -100;
    labels.forEach((label, i) => {
      const y = box.y + (i + 0.5) * each;
      if (y - lastY < 12) return;
      lastY = y;
      context.fillText(fitName(label, Math.floor((left - 14) / 6.2)), left - 7, y);
    });
    context.font = `10.5px ${colour("sans")}`;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const step of niceSteps(map.from, map.to, Math.max(2, box.width / 90))) context.fillText(wholeText(step), box.x + ((step - map.from + 0.5) / (map.w * map.per)) * box.width, box.y + box.height + 5);
    Object.assign(canvas.dataset, { from: map.from, to: map.to, first: map.first, rows: map.h });
    this.listenApart(canvas, map, box, each, tag);
  },
  listenApart(canvas, map, box, each, tag) {
    const at = (event) => {
      const column = Math.max(0, Math.min(map.w - 1, Math.floor(((event.offsetX - box.x) / box.width) * map.w)));
      return { column, row: Math.max(0, Math.min(map.h - 1, Math.floor((event.offsetY - box.y) / each))), first: map.from + column * map.per, last: Math.min(map.to, map.from + (column + 1) * map.per - 1) };
    };
    let press = null;
    canvas.addEventListener("pointermove", (event) => {
      const cell = at(event);
      const byte = map.cells[cell.row * map.w + cell.column];
      const far = byte === 250 ? words("finite_in_one") : byte > 250 ? "\u2014" : byte === 125 ? words("within_tolerance") : words("times_tolerance", { times: numberText(10 ** (((byte - 145) / 104) * 6), 2) });
      tag.textContent = `${plainName(map.rows[cell.row][0])} \u00b7 ${words("step_n", { step: cell.first === cell.last ? wholeText(cell.first) : `${wholeText(cell.first)}\u2013${wholeText(cell.last)}` })} \u00b7 ${far}`;
    });
    canvas.addEventListener("pointerdown", (event) => {
      press = event.offsetX;
    });
    canvas.addEventListener("pointerup", (event) => {
      const from = press;
      press = null;
      const cell = at(event);
      if (from !== null && Math.abs(event.offsetX - from) > 6) {
        const other = at({ offsetX: from, offsetY: event.offsetY });
        change({ from: Math.min(cell.first, other.first), to: Math.max(cell.last, other.last) }, { push: true });
      } else if (!map.rows[cell.row][2]) change({ at: `${map.rows[cell.row][0]},${cell.first}` });
    });
    canvas.addEventListener("dblclick", () => change({ from: null, to: null }, { push: true }));
  },
  key(event) {
    if (event.key !== "Escape" && event.key !== "0") return false;
    change({ from: null, to: null, at: null });
    return true;
  },
};
