// Compare: where do two runs part?
import { ask, change, fill, here, linkTo, make, param, quantityName, words } from "./state.js";
import { fitName, numberText, plainName, wholeText } from "./format.js";
import { lineChart, lineColour } from "./draw.js";
import { choice } from "./map.js";

const COMPARED = { norm: "norm", mean: "mean", std: "std", min: "min", max: "max" };

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
    const first = found.rows[0];
    const beside = make("canvas", { id: "beside", role: "img", "aria-label": words("chart_of", { name: first.row }) });
    fill(page, 
      make("h1.sentence", { id: "sentence", "data-step": found.step, "data-row": first.row, text: words("part_at", { step: wholeText(found.step), row: plainName(first.row), statistic: first.statistic, difference: typeof first.difference === "number" ? numberText(first.difference, 3) : `${numberText(first.a)} / ${numberText(first.b)}` }) }),
      make("p.lead", { text: words("part_lead", { before: wholeText(found.steps - 1), count: wholeText(found.count), in_step: wholeText(found.in_step) }) }),
      make("section.card", {}, make("p.between", {}, make("h2.mono", { text: `${first.statistic} \u00b7 ${plainName(first.row)}` }), make("span.note", { text: words("a_and_b") })), beside),
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
    foot.textContent = words("compare_foot", { a: found.a, b: found.b });
  },
  leftOut(found) {
    const lost = found.only_a + found.only_b + found.only_steps_a + found.only_steps_b;
    return lost ? make("p.note", { text: words("left_out", { a: wholeText(found.only_a), b: wholeText(found.only_b), steps_a: wholeText(found.only_steps_a), steps_b: wholeText(found.only_steps_b) }) }) : make("p");
  },
  async drawBeside(canvas, first, found, other, rank, rank2) {
    for (let read = false; !read && !here.data; ) {
      read = (await ask("run", { r: other })).read;
      if (!read) await new Promise((resolve) => setTimeout(resolve, 200));
    }
    const of = (number) => (number < 0 ? "" : number); /* of all ranks: the first one's */
    const given = { q: first.q, row: first.row, s: COMPARED[first.statistic] ?? "norm", from: Math.max(0, found.step - 100), to: found.step + 40, w: 400 };
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
      lineChart(canvas, { from, per: 1, w, tracks: [{ ...pad(a), style: lineColour(0), width: 1.8 }, { ...pad(b), style: lineColour(1), width: 1.2 }], marks: [{ step: found.step, style: lineColour(1), label: words("step_n", { step: wholeText(found.step) }) }] }, { width: Math.max(260, canvas.parentElement.clientWidth - 30), height: 210, top: 20, left: 52 });
    } catch (problem) {
      canvas.replaceWith(make("p.note", { text: problem.message }));
    }
  },
  key() {
    return false;
  },
};
