// Map: where, and since when?
import { ask, askMap, change, coarseText, colour, dotted, fill, go, here, latest, linkTo, make, numberParam, param, quantityName, words } from "./state.js";
import { distanceText, dtypeText, fitName, numberText, plainName, rowLabel, shareText, statName, wholeText } from "./format.js";
import { CELL, lineChart, lineColour, niceSteps, paintCells, rampStyle, triangle } from "./draw.js";
import { incidentTitle, kindStyle } from "./run.js";

const STATS = ["norm", "max_abs", "mean", "std", "min", "max", "zeros"];
const CUTS = ["module-step", "module-rank", "rank-step"];
const fresh = latest();
const freshCell = latest();

/** A choice in words: a label and a select. */
export function choice(id, label, options, value, onchange) {
  const select = make("select", { id, "aria-label": label, onchange: (event) => onchange(event.target.value) }, ...options.map(([key, text]) => make("option", { value: key, text })));
  select.value = value;
  return make("label.choice", {}, make("span.note", { text: label }), select);
}

/** A row of buttons of which one is on. */
export function buttons(id, label, options, value, onclick) {
  return make("div.buttons", { id, role: "group", "aria-label": label }, ...options.map(([key, text]) => make("button", { text, "data-value": key, "aria-pressed": key === value ? "true" : "false", onclick: () => onclick(key) })));
}

export function quantityOptions() {
  return here.info.quantities.filter((one) => one.q !== "scalar").map((one) => [one.q, quantityName(one.q)]);
}

export function chosenQuantity() {
  const there = quantityOptions().map(([q]) => q);
  return there.includes(param("q")) ? param("q") : (there[0] ?? "actv");
}

export const mapPage = {
  name: "map",
  map: null,
  cell: null, // {row, column}
  async draw(page, controls, foot, still) {
    if (here.info.last < 0) {
      fill(page, make("p.empty", { text: words("nothing_yet") }));
      return;
    }
    this.drawControls(controls);
    const rail = here.data ? null : await ask("timeline", { w: 600 });
    if (!still()) return;
    this.rail = rail;
    this.canvas = make("canvas", { id: "map", tabindex: 0, role: "img" });
    this.over = make("canvas.over", { "aria-hidden": "true" });
    this.tag = make("div.tag", { id: "tag" });
    this.strip = make("canvas", { id: "strip", "aria-hidden": "true" });
    this.panel = make("aside.card.panel", { id: "panel", "aria-label": words("selected") });
    this.holder = make("div.canvases", {}, this.canvas, this.over, this.tag);
    this.legend = make("div.legend", { id: "legend" });
    this.table = make("div", { id: "worst" });
    fill(page, make("div.split", {}, make("section.card.mapcard", {}, rail ? make("div.strip", {}, this.strip) : null, this.holder, this.legend, this.table), this.panel));
    this.foot = foot;
    this.listen();
    this.emptyPanel();
    await this.load(still);
  },
  cut() {
    return CUTS.includes(param("cut")) ? param("cut") : CUTS[0];
  },
  /** What the server is asked for. */
  question() {
    const cut = this.cut();
    const wide = Math.max(100, this.holder.clientWidth - this.left() - this.right());
    const at = this.address();
    return {
      q: chosenQuantity(),
      s: param("s", "norm"),
      side: param("side"),
      by: param("by"),
      cut: cut === CUTS[0] ? "" : cut,
      rank: param("rank"),
      rows: cut === "rank-step" && at ? at.row : param("rows"),
      unfold: param("unfold"),
      from: param("from"),
      to: param("to"),
      step: cut === "module-rank" ? (numberParam("step") ?? at?.step ?? "") : "",
      w: here.data ? 400 : Math.floor(wide / 2),
      h: here.data ? 400 : 190,
    };
  },
  left() {
    return this.holder.clientWidth < 500 ? 84 : 148;
  },
  right() {
    return this.cut() === "module-step" ? (this.holder.clientWidth < 500 ? 14 : 60) : 14;
  },
  /** at=row,step,rank */
  address() {
    const parts = param("at").split(",");
    return parts.length === 3 ? { row: parts[0], step: Number(parts[1]), rank: Number(parts[2]) } : null;
  },
  async load(still = () => true) {
    const current = fresh();
    document.documentElement.dataset.state = "loading";
    const begin = performance.now();
    let map;
    try {
      map = await askMap(this.question());
    } catch (problem) {
      if (current()) fill(this.legend, make("p.problem", { text: problem.message }, make("button", { text: words("retry"), onclick: () => this.load() })));
      document.documentElement.dataset.state = "error";
      return;
    }
    if (!current() || !still()) return;
    this.map = map;
    this.took = performance.now() - begin;
    this.paint();
    const at = this.address();
    if (at) this.select(at);
    document.documentElement.dataset.state = "ready";
  },
  drawControls(controls) {
    const quantity = here.info.quantities.find((one) => one.q === chosenQuantity());
    const ranks = here.info.ranks;
    const cut = this.cut();
    fill(controls, 
      choice("q", words("quantity"), quantityOptions(), chosenQuantity(), (q) => change({ q, at: null, unfold: null }, { push: true })),
      choice("s", words("statistic"), STATS.map((s) => [s, statName(s)]), param("s", "norm"), (s) => change({ s: s === "norm" ? null : s })),
      quantity && quantity.roles & 6 ? choice("side", words("side"), [["", words("outputs")], ["input", words("inputs")], ["all", words("both")]], param("side"), (side) => change({ side })) : null,
      ranks.length > 1 && cut === "module-step" ? choice("rank", words("ranks"), [["", words("worst_of", { count: ranks.length })], ...ranks.map((one) => [String(one.rank), words("rank_n", { rank: one.rank })])], param("rank"), (rank) => change({ rank })) : null,
      ranks.length > 1 || cut !== "module-step" ? buttons("cut", words("cut"), CUTS.map((one) => [one, words(`cut_${one}`)]), cut, (one) => change({ cut: one === CUTS[0] ? null : one }, { push: true })) : null,
      buttons("by", words("colour"), [["distance", words("by_distance")], ["value", words("by_value")]], param("by", "distance"), (by) => change({ by: by === "distance" ? null : by })),
      cut === "module-rank" ? make("label.choice.slider", {}, make("span.note", { text: words("step_slider") }), make("input", { id: "step", type: "range", min: Math.max(0, here.info.first), max: here.info.last, value: numberParam("step") ?? this.address()?.step ?? here.info.last, oninput: (event) => (event.target.nextSibling.textContent = wholeText(event.target.value)), onchange: (event) => change({ step: event.target.value }) }), make("output.mono", { text: wholeText(numberParam("step") ?? this.address()?.step ?? here.info.last) })) : null,
      cut === "rank-step" ? null : make("input", { id: "rows", type: "search", placeholder: words("rows_filter"), "aria-label": words("rows_filter"), value: param("rows"), onchange: (event) => change({ rows: event.target.value }) }),
      make("button", { id: "showtable", text: words("as_table"), "aria-pressed": param("table") ? "true" : "false", onclick: () => change({ table: param("table") ? null : "1" }) }),
    );
  },
  /** Where cells are on the canvas. */
  box() {
    const { map } = this;
    const room_x = this.holder.clientWidth - this.left() - this.right();
    const width = map.ranks ? Math.min(room_x, 90 * map.w) : room_x; // few ranks needn't fill it
    const room = here.data ? 420 : Math.max(260, window.innerHeight - 330);
    const least = map.h > 1000 ? 1 : 3; // a canvas of 10,000 pixels is slow, and nobody scrolls it
    const each = Math.max(least, Math.min(22, Math.floor(room / Math.max(1, map.h))));
    return { x: this.left(), y: 20, width, height: each * map.h };
  },
  paint() {
    const { map } = this;
    const box = this.box();
    const width = this.holder.clientWidth;
    const height = box.y + box.height + 22;
    this.holder.style.height = `${height}px`;
    for (const canvas of [this.canvas, this.over]) {
      const ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    context.fillStyle = colour("page");
    context.fillRect(box.x, box.y, box.width, box.height);
    paintCells(context, map, param("by", "distance") === "value" ? "value" : "distance", box);
    this.paintFrame(context, box);
    this.paintStrip();
    this.drawLegend();
    const name = `${quantityName(chosenQuantity())}, ${statName(param("s", "norm"))}`;
    const label = words("map_label", { name, rows: map.h, from: wholeText(map.from), to: wholeText(map.to) });
    this.canvas.setAttribute("aria-label", label);
    Object.assign(this.canvas.dataset, { from: map.from, to: map.to, rows: map.h, columns: map.w });
    this.foot.textContent = words("map_foot", { rows: wholeText(map.h), steps: wholeText(map.to - map.from + 1), per: wholeText(map.per), cells: wholeText(map.w * map.h), ms: Math.round(this.took), lost: map.gaps ? words("lost_n", { count: wholeText(map.gaps) }) : "" }) + coarseText(map);
    this.drawTable();
  },
  /** Labels, layers, incidents, the worst of each row. */
  paintFrame(context, box) {
    const { map } = this;
    const ch = box.height / map.h;
    const side = param("side") === "" ? ".output" : param("side") === "input" ? ".input" : "";
    this.labels = map.rows.map((row) => rowLabel(row[0], row[1], side));
    const letters = Math.floor((box.x - 14) / 6.2);
    context.font = `10.5px ${colour("mono")}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    let lastY = -100;
    let layer = null;
    map.rows.forEach((row, i) => {
      const y = box.y + i * ch;
      if (row[1] !== layer && i > 0 && ch * map.h > 40) {
        context.fillStyle = colour("surface");
        context.globalAlpha = 0.8;
        context.fillRect(box.x, Math.round(y) - 0.5, box.width, 1);
        context.globalAlpha = 1;
      }
      layer = row[1];
      if (y + ch / 2 - lastY < 12) return;
      lastY = y + ch / 2;
      context.fillStyle = colour("secondary");
      const text = row[2] > 0 ? `${this.labels[i]} \u00b7 ${row[2]}` : fitName(this.labels[i], letters);
      context.fillText(text.length > letters ? `\u2026${text.slice(-letters + 1)}` : text, box.x - 7, y + ch / 2);
    });
    context.font = `10.5px ${colour("sans")}`;
    context.textBaseline = "top";
    context.textAlign = "center";
    context.fillStyle = colour("secondary");
    if (map.ranks) {
      map.ranks.forEach((rank, i) => context.fillText(box.width / map.w > 60 ? words("rank_n", { rank }) : String(rank), box.x + ((i + 0.5) / map.w) * box.width, box.y + box.height + 5));
      return;
    }
    for (const step of niceSteps(map.from, map.to, Math.max(2, box.width / 90))) context.fillText(wholeText(step), this.xOf(step, box), box.y + box.height + 5);
    this.paintIncidents(context, box);
    if (this.right() > 20) this.paintWorst(context, box);
  },
  paintIncidents(context, box) {
    const { map } = this;
    context.textBaseline = "alphabetic";
    let free = -Infinity;
    for (const incident of here.incidents) {
      if (incident.step < map.from || incident.step > map.to) continue;
      const x = this.xOf(incident.step, box);
      context.fillStyle = kindStyle(incident.kind);
      triangle(context, x, box.y - 1, 4.5);
      const label = `${incident.n} \u00b7 ${words(`k_${incident.kind}`)}`;
      const wide = context.measureText(label).width;
      if (x - 4 > free) {
        const left = x + 9 + wide > box.x + box.width;
        context.textAlign = left ? "right" : "left";
        context.fillText(label, left ? x - 9 : x + 9, box.y - 5);
        free = left ? x + 10 : x + 14 + wide;
      }
    }
  },
  paintWorst(context, box) {
    const { map } = this;
    const ch = box.height / map.h;
    const x = box.x + box.width + 8;
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.fillStyle = colour("faint");
    context.fillText(words("worst"), x, box.y - 5);
    map.rows.forEach((row, i) => {
      const far = Math.min(12, Math.abs(row[3] ?? 0));
      if (far < Math.max(4, map.neutral + 0.5 * Math.log2(map.w))) return;
      context.fillStyle = row[3] > 0 ? colour("above") : colour("below");
      context.fillRect(x, box.y + i * ch + ch / 2 - 1, (far / 12) * (this.right() - 22), 2);
    });
    const inside = here.incidents.filter((one) => one.q === chosenQuantity() && one.step >= map.from && one.step <= map.to);
    const chosen = inside.find((one) => one.kind === "nonfinite") ?? inside[inside.length - 1];
    const row = chosen ? map.rows.findIndex((one) => one[0] === chosen.row || (one[2] > 0 && chosen.row.startsWith(`${one[0]}.`))) : -1;
    if (row >= 0) {
      const y = box.y + (row + 0.5) * ch;
      context.fillStyle = kindStyle(chosen.kind);
      context.beginPath();
      context.moveTo(box.x + box.width + this.right() - 10, y);
      context.lineTo(box.x + box.width + this.right() - 2, y - 5);
      context.lineTo(box.x + box.width + this.right() - 2, y + 5);
      context.fill();
    }
  },
  paintStrip() {
    const { rail, map } = this;
    if (!rail) return;
    const width = this.holder.clientWidth;
    const track = rail.loss.last.some((value) => value !== null) ? rail.loss : rail.gradient;
    const box = { left: this.left(), right: this.right() };
    this.stripHow = lineChart(this.strip, { from: rail.from, per: rail.per, w: rail.w, tracks: [{ ...track, style: colour("secondary"), width: 1 }], marks: here.incidents.map((one) => ({ step: one.step, style: kindStyle(one.kind), label: "" })) }, { width, height: 66, ...box, top: 10, bottom: 16 });
    const context = this.strip.getContext("2d");
    const first = this.stripHow.xOf(map.from - 0.5);
    const last = this.stripHow.xOf(map.to + 0.5);
    context.fillStyle = colour("accent");
    context.globalAlpha = 0.14;
    context.fillRect(first, 10, Math.max(2, last - first), 40);
    context.globalAlpha = 1;
    context.strokeStyle = colour("accent");
    context.strokeRect(first + 0.5, 10.5, Math.max(2, last - first) - 1, 39);
  },
  drawLegend() {
    const { map } = this;
    const kind = param("by", "distance");
    const bar = make("span.ramp");
    bar.style.background = rampStyle(kind === "value" ? "value" : "distance");
    const outside = [map.below ? words("cells_below", { count: wholeText(map.below), value: numberText(map.low) }) : "", map.above ? words("cells_above", { count: wholeText(map.above), value: numberText(map.high) }) : ""].filter(Boolean).join(" \u00b7 ");
    fill(this.legend, 
      make("span", { text: kind === "value" ? numberText(map.low) : words("below_normal") }),
      bar,
      make("span", { text: kind === "value" ? numberText(map.high) : words("above_normal") }),
      make("span.note", { text: kind === "value" ? `${map.log ? words("log_scale") : ""} ${outside}` : words("normal_note") }),
      make("span.grow"),
      make("span.key", {}, make("i.odd"), words("nan_or_inf")),
      make("span.key", {}, make("i.gap"), words("gap")),
      make("span.key", {}, make("i.none"), words("not_recorded")),
    );
  },
  async drawTable() {
    if (!param("table")) {
      fill(this.table);
      return;
    }
    const worst = await ask("worst", { s: param("s", "norm"), step: numberParam("step") ?? this.map.to, n: 50 });
    fill(this.table, 
      make("h2", { text: words("worst_at", { step: wholeText(worst.step) }) }),
      make(
        "table",
        {},
        make("thead", {}, make("tr", {}, ...["series", "quantity", "rank", "value", "distance"].map((one) => make("th", { text: words(one) })))),
        make("tbody", {}, ...worst.rows.map((row) => make("tr", {}, make("td.mono", {}, make("a", { href: linkTo("series", { k: `${row.q}/${row.row}`, s: param("s") }), text: row.row })), make("td", { text: quantityName(row.q) }), make("td.mono", { text: row.rank }), make("td.mono", { text: numberText(row.value) }), make("td.mono", { text: typeof row.value === "string" ? "" : distanceText(row.distance) })))),
      ),
    );
  },
  xOf(step, box) {
    return box.x + ((step - this.map.from + this.map.per / 2) / (this.map.w * this.map.per)) * box.width;
  },
  cellAt(x, y) {
    const { map } = this;
    const box = this.box();
    const column = Math.floor(((x - box.x) / box.width) * map.w);
    const row = Math.floor(((y - box.y) / box.height) * map.h);
    return column >= 0 && column < map.w && row >= 0 && row < map.h ? { row, column } : null;
  },
  stepsOf(column) {
    const first = this.map.from + column * this.map.per;
    return [first, Math.min(this.map.to, first + this.map.per - 1)];
  },
  stepText(column) {
    if (this.map.ranks) return words("rank_n", { rank: this.map.ranks[column] });
    const [first, last] = this.stepsOf(column);
    return first === last ? wholeText(first) : `${wholeText(first)}\u2013${wholeText(last)}`;
  },
  byteText(byte) {
    if (byte === CELL.nan) return "NaN";
    if (byte === CELL.positive) return "+Inf";
    if (byte === CELL.negative) return "\u2212Inf";
    if (byte === CELL.gap) return words("gap");
    if (byte > 252) return "\u2014";
    if (param("by", "distance") === "distance") {
      const { neutral, faintest, high } = this.map;
      const far = neutral + ((Math.abs(byte - 125) / 124 - faintest) / (1 - faintest)) * (high - neutral);
      const sign = byte < 125 ? -1 : 1;
      return byte === 125 ? words("normal") : far >= high ? `${sign < 0 ? "< \u2212" : "> "}${distanceText(high)}` : distanceText(sign * far);
    }
    const share = byte / 249;
    const { low, high, log } = this.map;
    return `\u2248 ${numberText(log ? low * (high / low) ** share : low + (high - low) * share, 2)}`;
  },
  /** Crosshair, selection and tag: on a canvas of their own. */
  paintOver(hovered) {
    const context = this.over.getContext("2d");
    const box = this.box();
    const cw = box.width / this.map.w;
    const ch = box.height / this.map.h;
    context.clearRect(0, 0, this.holder.clientWidth, this.holder.clientHeight);
    if (this.cell) {
      context.strokeStyle = colour("surface");
      context.lineWidth = 3;
      const x = box.x + this.cell.column * cw;
      const y = box.y + this.cell.row * ch;
      context.strokeRect(x - 1, y - 1, Math.max(cw, 3) + 2, Math.max(ch, 3) + 2);
      context.strokeStyle = colour("text");
      context.lineWidth = 1.5;
      context.strokeRect(x - 1.5, y - 1.5, Math.max(cw, 3) + 3, Math.max(ch, 3) + 3);
    }
    if (hovered) {
      context.fillStyle = colour("text");
      context.globalAlpha = 0.25;
      context.fillRect(box.x, box.y + (hovered.row + 0.5) * ch, box.width, 1);
      context.fillRect(box.x + (hovered.column + 0.5) * cw, box.y, 1, box.height);
      context.globalAlpha = 1;
    }
    const shown = hovered ?? null;
    this.tag.style.display = shown ? "block" : "none";
    if (shown) {
      this.tag.textContent = `${this.labels[shown.row]}  ${this.stepText(shown.column)}  ${this.byteText(this.map.cells[shown.row * this.map.w + shown.column])}`;
      const x = box.x + (shown.column + 0.5) * cw;
      const wide = this.tag.offsetWidth;
      this.tag.style.left = `${Math.max(4, Math.min(this.holder.clientWidth - wide - 4, x - wide / 2))}px`;
      const y = box.y + shown.row * ch - 34;
      this.tag.style.top = `${y < 0 ? box.y + (shown.row + 1) * ch + 10 : y}px`;
    }
  },
  listen() {
    let press = null;
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.map) return;
      const at = this.cellAt(event.offsetX, event.offsetY);
      if (press) this.paintDrag(press, event);
      else this.paintOver(at);
    });
    this.canvas.addEventListener("pointerleave", () => this.map && this.paintOver(null));
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse") press = { x: event.offsetX, y: event.offsetY };
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const from = press;
      press = null;
      if (from && Math.abs(event.offsetX - from.x) > 6 && !this.map.ranks) {
        const box = this.box();
        const column = (x) => Math.max(0, Math.min(this.map.w - 1, Math.floor(((x - box.x) / box.width) * this.map.w)));
        this.zoom(this.stepsOf(column(Math.min(from.x, event.offsetX)))[0], this.stepsOf(column(Math.max(from.x, event.offsetX)))[1]);
        return;
      }
      const at = this.cellAt(event.offsetX, event.offsetY);
      if (at) this.pick(at);
      else this.unfoldAt(event);
    });
    this.canvas.addEventListener(
      "wheel",
      (event) => {
        if (!this.map || this.map.ranks || event.shiftKey || here.data) return;
        event.preventDefault();
        const at = this.cellAt(event.offsetX, event.offsetY);
        if (at) this.zoomBy(event.deltaY > 0 ? 1.5 : 1 / 1.5, (this.stepsOf(at.column)[0] - this.map.from) / (this.map.to - this.map.from + 1));
      },
      { passive: false },
    );
    this.canvas.addEventListener("dblclick", () => this.zoomBy(0.25, 0.5));
    if (this.rail) this.listenStrip();
  },
  listenStrip() {
    let press = null;
    this.strip.addEventListener("pointerdown", (event) => {
      press = event.offsetX;
      this.strip.setPointerCapture(event.pointerId);
    });
    this.strip.addEventListener("pointerup", (event) => {
      if (press === null) return;
      const a = this.stripHow.stepAt(Math.min(press, event.offsetX));
      const b = this.stripHow.stepAt(Math.max(press, event.offsetX));
      const moved = Math.abs(event.offsetX - press) > 4;
      press = null;
      if (moved) this.zoom(a, b);
      else {
        const half = Math.floor((this.map.to - this.map.from) / 2);
        this.zoom(a - half, a + half);
      }
    });
  },
  paintDrag(press, event) {
    const context = this.over.getContext("2d");
    const box = this.box();
    context.clearRect(0, 0, this.holder.clientWidth, this.holder.clientHeight);
    context.fillStyle = colour("accent");
    context.globalAlpha = 0.15;
    context.fillRect(Math.min(press.x, event.offsetX), box.y, Math.abs(event.offsetX - press.x), box.height);
    context.globalAlpha = 1;
  },
  /** A click on the label of a folded layer unfolds it, on one of an unfolded one folds it. */
  unfoldAt(event) {
    const box = this.box();
    const row = Math.floor(((event.offsetY - box.y) / box.height) * this.map.h);
    if (event.offsetX > box.x || row < 0 || row >= this.map.h) return;
    const layer = this.map.rows[row][1];
    const list = param("unfold").split(",").filter(Boolean);
    if (layer) change({ unfold: (list.includes(layer) ? list.filter((one) => one !== layer) : [...list, layer]).join(",") });
  },
  zoom(from, to) {
    const { first, last } = here.info;
    const a = Math.max(first, Math.min(from, last));
    const b = Math.min(last, Math.max(to, a));
    change({ from: a <= first ? null : a, to: b >= last ? null : b }, { draw: false });
    this.stretch(a, b);
    this.load();
  },
  /** The old picture, until the new one is here. */
  stretch() {
    this.canvas.style.opacity = "0.6";
    setTimeout(() => (this.canvas.style.opacity = "1"), 120);
  },
  zoomBy(factor, at) {
    const span = this.map.to - this.map.from + 1;
    const next = Math.max(8, Math.round(span * factor));
    const from = Math.round(this.map.from + (span - next) * at);
    this.zoom(from, from + next - 1);
  },
  pick({ row, column }) {
    const line = this.map.rows[row];
    const ranks = this.map.ranks;
    const [first, last] = ranks ? [this.map.from, this.map.from] : this.stepsOf(column);
    this.cell = { row, column };
    this.paintOver(null);
    this.load_cell(line, first, last, ranks ? ranks[column] : this.cut() === "rank-step" ? here.info.ranks[row].rank : param("rank"));
  },
  async load_cell(line, from, to, rank) {
    const current = freshCell();
    const isRank = this.cut() === "rank-step";
    const at = this.address();
    try {
      const cell = await ask("cell", { q: chosenQuantity(), s: param("s", "norm"), side: param("side"), rows: isRank ? at?.row : line[2] > 0 ? param("rows") : line[0], layer: line[2] > 0 ? line[1] : "", from, to, rank });
      if (!current()) return;
      change({ at: `${cell.row},${cell.step},${cell.rank}` }, { draw: false });
      await this.showPanel(cell, current);
    } catch (problem) {
      if (current()) fill(this.panel, make("p.note", { text: problem.message }));
    }
  },
  /** Takes the cell of the address. */
  select({ row, step, rank }) {
    const { map } = this;
    let line = map.rows.findIndex((one) => one[0] === row);
    if (line < 0) line = map.rows.findIndex((one) => one[2] > 0 && row.startsWith(`${one[0]}.`));
    if (this.cut() === "rank-step") line = here.info.ranks.findIndex((one) => one.rank === rank);
    if (line < 0 || step < map.from || step > map.to) return;
    this.cell = { row: line, column: map.ranks ? Math.max(0, map.ranks.indexOf(rank)) : Math.floor((step - map.from) / map.per) };
    this.paintOver(null);
    this.load_cell([row, "", 0, 0], step, step, rank);
  },
  emptyPanel() {
    fill(this.panel, make("p.note", { text: words("panel_hint") }), make("p.note", { text: words("panel_note") }));
  },
  async showPanel(cell, current) {
    const odd = cell.nan + cell.pos_inf + cell.neg_inf > 0;
    const fact = (label, value, bad) => make("div.line", {}, make("span", { text: label }), make(bad ? "b.mono.bad" : "b.mono", { text: value, title: words("click_copies"), onclick: () => navigator.clipboard?.writeText(String(value)) }));
    const count = cell.count ?? 0;
    const parts = [];
    if (cell.nan) parts.push(`${wholeText(cell.nan)} \u00d7 NaN`);
    if (cell.pos_inf) parts.push(`${wholeText(cell.pos_inf)} \u00d7 +Inf`);
    if (cell.neg_inf) parts.push(`${wholeText(cell.neg_inf)} \u00d7 \u2212Inf`);
    const far = cell.distance ?? 0;
    const incident = here.incidents.find((one) => one.step <= cell.step && one.last >= cell.step);
    const chart = make("canvas", { "aria-label": words("chart_of", { name: cell.row }) });
    this.panel.dataset.row = cell.row;
    this.panel.dataset.step = cell.step;
    this.panel.dataset.value = cell.value;
    fill(this.panel, 
      make("p.note", { text: words("panel_head", { step: wholeText(cell.step), rank: cell.rank }) }),
      make("h2.mono.name", { title: cell.row }, dotted(plainName(cell.row))),
      make("p.note", { text: `${quantityName(cell.q)} \u00b7 ${dtypeText(cell.dtype)} \u00b7 ${(cell.shape ?? []).join(" \u00d7 ")}${cell.records > 1 ? ` \u00b7 ${words("of_records", { micro: cell.micro_step, count: cell.records })}` : ""}` }),
      odd ? make("p.bad.big", { text: parts.join(" \u00b7 ") }, make("span.note", { text: ` ${words("of_n", { count: wholeText(count) })}` })) : make("p.big", {}, make(far > 2 ? "b.above" : far < -2 ? "b.below" : "b", { text: Math.abs(far) > 2 ? words(far > 0 ? "above_by" : "below_by", { distance: distanceText(Math.abs(far)) }) : words("within_normal") })),
      make("hr"),
      fact(statName(param("s", "norm")), numberText(cell.value), typeof cell.value === "string"),
      cell.normal ? fact(words("normal_range"), `${numberText(cell.normal[0], 3)} \u2026 ${numberText(cell.normal[1], 3)}`) : null,
      ...["norm", "max_abs", "mean", "std"].filter((name) => name !== param("s", "norm") && cell[name] !== undefined).map((name) => fact(statName(name), numberText(cell[name]), typeof cell[name] === "string")),
      cell.finite_max !== undefined ? fact(words("finite_range"), `${numberText(cell.finite_min, 3)} \u2026 ${numberText(cell.finite_max, 3)}`) : null,
      cell.zeros !== undefined ? fact(words("zeros"), shareText(cell.zeros, count)) : null,
      cell.count !== undefined ? fact("NaN \u00b7 +Inf \u00b7 \u2212Inf", [cell.nan, cell.pos_inf, cell.neg_inf].map(wholeText).join(" \u00b7 "), odd) : null,
      cell.index !== undefined ? fact(words("largest_at"), this.indexText(cell)) : null,
      make("hr"),
      make("p.note.between", {}, make("span", { text: words("all_ranks_of", { name: statName(param("s", "norm")) }) }), make("span", { text: words("last_steps", { count: 200 }) })),
      chart,
      make("hr"),
      ...[
        ["s", words("open_series"), linkTo("series", { k: `${cell.q}/${cell.row}`, s: param("s"), step: cell.step })],
        incident ? ["i", words("open_incident", { n: incident.n, title: incidentTitle(incident) }), linkTo("incidents", { i: incident.n })] : null,
        here.info.ranks.length > 1 ? ["r", words("every_rank"), linkTo("map", { q: cell.q, s: param("s"), cut: "rank-step", at: `${cell.row},${cell.step},${cell.rank}` })] : null,
      ]
        .filter(Boolean)
        .map(([key, text, href]) => make("p.between", {}, make("a", { href, text, "data-key": key }), make("kbd", { text: key }))),
    );
    document.getElementById("live").textContent = `${cell.row}, ${words("step_n", { step: cell.step })}, ${odd ? parts.join(", ") : numberText(cell.value)}`;
    if (here.data) return;
    const line = await ask("series", { q: cell.q, row: cell.row, s: param("s", "norm"), from: Math.max(here.info.first, cell.step - 199), to: cell.step, w: 200 });
    if (!current()) return;
    const tracks = line.ranks.map((one, i) => ({ ...one.v, style: one.rank === cell.rank ? lineColour(0) : colour("line-strong"), width: one.rank === cell.rank ? 1.6 : 1, order: i }));
    tracks.sort((a, b) => (a.width ?? 0) - (b.width ?? 0));
    lineChart(chart, { from: line.from, per: line.per, w: line.w, tracks, band: cell.normal }, { width: this.panel.clientWidth - 30, height: 110, left: 44 });
  },
  indexText(cell) {
    let rest = cell.index;
    const at = [];
    for (const size of [...(cell.shape ?? [])].reverse()) {
      at.unshift(size ? rest % size : 0);
      rest = size ? Math.floor(rest / size) : 0;
    }
    return `[${at.join(", ")}]`;
  },
  move(dx, dy) {
    const at = this.cell ?? { row: 0, column: this.map.w - 1 };
    this.pick({ row: Math.max(0, Math.min(this.map.h - 1, at.row + dy)), column: Math.max(0, Math.min(this.map.w - 1, at.column + dx)) });
  },
  /** The next cell, step by step, that is odd (or far from normal). */
  seek(found, back) {
    const { w, h, cells } = this.map;
    const total = w * h;
    const start = this.cell ? this.cell.column * h + this.cell.row : back ? total : -1;
    for (let i = 1; i <= total; i++) {
      const at = (((start + (back ? -i : i)) % total) + total) % total;
      const column = Math.floor(at / h);
      const row = at % h;
      if (found(cells[row * w + column])) {
        this.pick({ row, column });
        return;
      }
    }
  },
  key(event) {
    if (!this.map) return false;
    const far = event.shiftKey ? 10 : 1;
    const isOddByte = (byte) => byte >= 250 && byte <= 252;
    const abnormal = (byte) => isOddByte(byte) || (byte < 250 && Math.abs(byte - 125) > 60);
    const keys = {
      ArrowLeft: () => this.move(-far, 0),
      ArrowRight: () => this.move(far, 0),
      ArrowUp: () => this.move(0, -far),
      ArrowDown: () => this.move(0, far),
      "+": () => this.zoomBy(0.5, this.cell ? this.cell.column / this.map.w : 0.5),
      "=": () => this.zoomBy(0.5, this.cell ? this.cell.column / this.map.w : 0.5),
      "-": () => this.zoomBy(2, 0.5),
      0: () => this.zoom(here.info.first, here.info.last),
      Escape: () => this.zoom(here.info.first, here.info.last),
      n: () => this.seek(isOddByte, false),
      N: () => this.seek(isOddByte, true),
      a: () => this.seek(abnormal, false),
      A: () => this.seek(abnormal, true),
      v: () => change({ table: param("table") ? null : "1" }),
      ",": () => this.play(-1),
      ".": () => this.play(1),
    };
    if (keys[event.key]) keys[event.key]();
    else {
      const link = this.panel.querySelector(`a[data-key="${event.key}"]`);
      if (!link) return false;
      link.click();
    }
    return true;
  },
  /** module × rank, a step on. */
  play(by) {
    if (!this.map.ranks) return;
    change({ step: Math.max(here.info.first, Math.min(here.info.last, this.map.from + by)) }, { draw: false });
    this.load();
  },
  async live() {
    if (this.map && (this.map.coming || (!param("to") && !this.address()))) await this.load();
  },
  leave() {
    this.map = null;
    this.cell = null;
  },
};

export function openMap(incident) {
  go("map", { q: incident.q, at: `${incident.row},${incident.step},${incident.rank}` });
}
