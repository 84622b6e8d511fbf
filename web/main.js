// The frame around the pages: tabs, search, keys, languages, themes, and what is new.
import { ask, change, fill, go, here, linkTo, make, param, quantityName, readAddress, whenChanged, words } from "./state.js";
import { plainName } from "./format.js";
import { healthSentence, runPage, stateText } from "./run.js";
import { mapPage } from "./map.js";
import { seriesPage } from "./series.js";
import { incidentPage } from "./incident.js";
import { communicationPage } from "./communication.js";
import { comparePage } from "./compare.js";

const PAGES = [runPage, mapPage, seriesPage, incidentPage, communicationPage, comparePage];
const LOOK_MS = 1000;
let drawing = 0;
let version = -1;
let unknown = [];

const $ = (id) => document.getElementById(id);

function pageNow() {
  return PAGES.find((one) => one.name === here.page) ?? runPage;
}

function choose(name, fallback) {
  try {
    return localStorage.getItem(`tensorprobe-${name}`) ?? fallback;
  } catch {
    return fallback;
  }
}

function keep(name, value) {
  try {
    localStorage.setItem(`tensorprobe-${name}`, value);
  } catch {
    // It holds until the page is closed.
  }
}

async function loadWords() {
  if (!here.data) here.words = await (await fetch(`/${here.lang}.json`)).json();
  else here.words = here.data.words[here.lang];
  document.documentElement.lang = here.lang;
}

function setTheme(theme) {
  here.theme = theme;
  document.documentElement.dataset.theme = theme;
}

/** What is known of the run; whether that is new. */
async function look() {
  const info = await ask("run");
  const fresh = info.version !== version || !here.info || info.read !== here.info.read;
  here.info = info;
  if (fresh) here.incidents = (await ask("incidents")).incidents;
  version = info.version;
  return fresh;
}

function drawTop() {
  const state = stateText(here.info);
  const tab = (name) => make("a", { href: linkTo(name), "data-page": name, "aria-current": here.page === name ? "page" : undefined, text: words(`page_${name}`) }, name === "incidents" && here.incidents.length ? make("b.count", { text: here.incidents.length }) : null);
  const runs = make("select.mono", { id: "run", "aria-label": words("run"), onchange: (event) => location.assign(`/r/${encodeURIComponent(event.target.value)}/${here.page}`) }, ...here.runs.map((one) => make("option", { value: one.id, text: one.id })));
  runs.value = here.info.id;
  const pages = make("select", { id: "pages", "aria-label": words("page"), onchange: (event) => go(event.target.value) }, ...PAGES.map((one) => make("option", { value: one.name, text: words(`page_${one.name}`) })));
  pages.value = here.page;
  fill($("top"), 
    make("a.brand", { href: linkTo("run"), text: "TensorProbe" }),
    runs,
    pages,
    make("nav", {}, ...PAGES.map((one) => tab(one.name))),
    make("span.grow"),
    make("span.state", { id: "state", "data-live": state.live, role: "status", text: state.text }),
    make("button", { id: "search", onclick: openSearch }, make("kbd", { text: "/" }), ` ${words("search")}`),
    make("button", { id: "lang", "aria-label": words("language"), text: here.lang === "en" ? "\u4e2d\u6587" : "EN", onclick: async () => {
      here.lang = here.lang === "en" ? "zh" : "en";
      keep("lang", here.lang);
      await loadWords();
      drawTop();
      await draw();
    } }),
    make("button", { id: "theme", "aria-label": words("theme"), text: "\u25d0", onclick: async () => {
      setTheme(here.theme === "dark" ? "light" : "dark");
      keep("theme", here.theme);
      await draw();
    } }),
  );
  document.title = `${words(`page_${pageNow().name}`)} \u00b7 ${here.info.id} \u00b7 TensorProbe`;
}

async function draw() {
  const mine = ++drawing;
  const still = () => mine === drawing;
  const page = pageNow();
  document.documentElement.dataset.state = "loading";
  document.documentElement.dataset.page = page.name;
  $("foot").textContent = "";
  if (page.name !== "map" && page.name !== "series" && page.name !== "communication" && page.name !== "compare") fill($("controls"));
  try {
    await page.draw($("page"), $("controls"), $("foot"), still);
    if (!still()) return;
    if (unknown.length) $("foot").textContent += ` \u00b7 ${words("unknown", { names: unknown.join(", ") })}`;
    if (document.documentElement.dataset.state !== "error") document.documentElement.dataset.state = "ready";
  } catch (problem) {
    if (!still()) return;
    fill($("page"), make("p.problem", { text: problem.message }, make("button", { text: words("retry"), onclick: draw })));
    document.documentElement.dataset.state = "error";
  }
}

let last = runPage;
whenChanged(() => {
  if (last !== pageNow()) last.leave?.();
  last = pageNow();
  drawTop();
  draw();
});

/** One box over series, steps, incidents and pages. */
function openSearch() {
  if ($("finder")) return;
  const list = make("ul", { id: "results", role: "listbox" });
  const input = make("input", { type: "search", id: "box", placeholder: words("search_hint"), "aria-label": words("search"), autocomplete: "off" });
  const dialog = make("dialog", { id: "finder" }, input, list);
  let chosen = 0;
  const close = () => {
    dialog.close();
    dialog.remove();
  };
  const mark = () => [...list.children].forEach((one, i) => one.setAttribute("aria-selected", i === chosen ? "true" : "false"));
  const show = (items) => {
    chosen = 0;
    fill(list, ...items.map(([left, right, run]) => make("li", { role: "option", onclick: () => {
      close();
      run();
    } }, make("span.note", { text: left }), make("span.mono.right", { text: right }))));
    mark();
  };
  const pick = (row) => {
    if (here.page === "series") seriesPage.add(`${row.q}/${row.row}`);
    else go("series", { k: `${row.q}/${row.row}` });
  };
  const find = async () => {
    const text = input.value.trim();
    const items = [];
    if (/^\d+$/.test(text)) items.push([words("step"), text, () => go("map", { step: text, from: Math.max(here.info.first, Number(text) - 50), to: Number(text) + 50 })]);
    for (const incident of here.incidents) if (text && String(incident.n) === text) items.push([words("incident"), `${incident.n} \u00b7 ${incident.row}`, () => go("incidents", { i: incident.n })]);
    for (const page of PAGES) if (text && words(`page_${page.name}`).toLowerCase().startsWith(text.toLowerCase())) items.push([words("page"), words(`page_${page.name}`), () => go(page.name)]);
    const mine = text;
    const found = await ask("search", { t: text });
    if (mine !== input.value.trim()) return;
    show([...items, ...found.results.map((row) => [quantityName(row.q), plainName(row.row), () => pick(row)])].slice(0, 12));
  };
  input.addEventListener("input", find);
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      chosen = Math.max(0, Math.min(list.children.length - 1, chosen + (event.key === "ArrowDown" ? 1 : -1)));
      mark();
      event.preventDefault();
    } else if (event.key === "Enter") {
      list.children[chosen]?.click();
      event.preventDefault();
    }
    event.stopPropagation();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  find();
}

function openKeys() {
  if ($("help")) return;
  const rows = [["1 \u2026 6", "h_pages"], ["/", "h_search"], ["\u2190 \u2192 \u2191 \u2193", "h_move"], ["+ \u2212 0 Esc", "h_zoom"], ["n N", "h_odd"], ["a A", "h_abnormal"], ["s i r", "h_links"], ["[ ]", "h_incident"], ["m", "h_micro"], ["v", "h_table"], [", .", "h_play"], ["t l y", "h_theme"], ["?", "h_help"]];
  const dialog = make("dialog", { id: "help" }, make("h2", { text: words("keys") }), make("table", {}, make("tbody", {}, ...rows.map(([key, text]) => make("tr", {}, make("td", {}, make("kbd", { text: key })), make("td", { text: words(text) }))))), make("button", { text: words("close"), onclick: () => dialog.close() }));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const tag = event.target.tagName;
  if (tag === "INPUT" || tag === "SELECT" || tag === "TEXTAREA") return;
  const number = Number(event.key);
  if (event.key === "/") openSearch();
  else if (event.key === "?") openKeys();
  else if (event.key === "t") $("theme").click();
  else if (event.key === "l") $("lang").click();
  else if (event.key === "y") navigator.clipboard?.writeText(location.href);
  else if (!(pageNow().name === "map" && event.key === "0") && Number.isInteger(number) && number >= 1 && number <= PAGES.length) go(PAGES[number - 1].name);
  else if (!pageNow().key?.(event)) return;
  event.preventDefault();
}

/** Links of our own change the page without loading it. */
function onClick(event) {
  const link = event.target.closest?.("a[href^='/r/']");
  if (!link || event.ctrlKey || event.metaKey || event.button !== 0) return;
  event.preventDefault();
  if (here.data) return;
  history.pushState(null, "", link.getAttribute("href"));
  takeAddress();
}

function takeAddress() {
  const run = here.run;
  unknown = readAddress();
  if (!here.run) here.run = run;
  if (last !== pageNow()) last.leave?.();
  last = pageNow();
  drawTop();
  draw();
}

async function keepLooking() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    if (document.hidden) continue;
    try {
      const before = here.info;
      const fresh = await look();
      document.body.dataset.connected = "yes";
      const state = stateText(here.info);
      $("state").textContent = state.text;
      $("state").dataset.live = state.live;
      const failed = document.documentElement.dataset.state === "error";
      if (!fresh && !failed) continue;
      drawTop();
      const page = pageNow();
      const busy = document.querySelector("dialog[open]") || document.documentElement.dataset.state === "loading";
      if (busy) continue;
      if (failed) await draw();
      else if (page.live) await page.live();
      else if (page === runPage && !param("to")) await draw();
      if (before.last < 0) await draw();
    } catch (problem) {
      document.body.dataset.connected = "no";
      $("state").textContent = problem.message;
      $("state").dataset.live = "lost";
    }
  }
}

async function startReport(data) {
  here.data = data;
  here.run = data.run;
  here.lang = choose("lang", navigator.language.startsWith("zh") ? "zh" : "en");
  setTheme(choose("theme", matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  await loadWords();
  here.info = await ask("run");
  here.incidents = (await ask("incidents")).incidents;
  const top = make("div.reporttop", {}, make("b", { text: "TensorProbe" }), make("span.mono", { text: here.info.id }), make("span.grow"), make("span.note", { text: stateText(here.info).text }), make("button", { id: "lang", text: here.lang === "en" ? "\u4e2d\u6587" : "EN", onclick: () => {
    keep("lang", here.lang === "en" ? "zh" : "en");
    drawReport(data);
  } }), make("button", { id: "theme", text: "\u25d0", "aria-label": words("theme"), onclick: () => {
    keep("theme", here.theme === "dark" ? "light" : "dark");
    drawReport(data);
  } }));
  fill($("top"), top);
}

/** All pages in one scroll. */
async function drawReport(data) {
  document.documentElement.dataset.state = "loading";
  await startReport(data);
  const always = () => true;
  const all = $("page");
  fill(all);
  const section = (title) => {
    const inner = make("div.sheet");
    if (title) all.append(make("h1.chapter", { text: title }));
    all.append(inner);
    return inner;
  };
  const nowhere = () => make("div");
  if (here.incidents.length) {
    all.append(make("h1.sentence", { text: healthSentence() }), make("h1.chapter", { text: words("incidents") }));
    for (const incident of data.shown) await incidentPage.show(all, await ask("incident", { i: incident }), always);
  }
  here.page = "run";
  await runPage.draw(section(words("page_run")), nowhere(), nowhere(), always);
  for (const map of data.maps) {
    here.page = "map";
    here.params = new Map(Object.entries(map));
    await Object.assign(Object.create(mapPage), { map: null, cell: null }).draw(section(`${words("page_map")} \u00b7 ${quantityName(map.q)}`), nowhere(), make("p.note"), always);
  }
  all.append(make("h1.chapter", { text: words("page_series") }));
  here.page = "series";
  for (const key of data.series) {
    here.params = new Map([["k", key]]);
    await Object.assign(Object.create(seriesPage), { chart: null }).draw(section(""), nowhere(), nowhere(), always);
  }
  here.params = new Map();
  if ((await ask("communication", { w: 300 })).calls) await communicationPage.draw(section(words("page_communication")), nowhere(), nowhere(), always);
  all.append(make("h1.chapter", { text: words("left_out_title") }), make("p.note", { text: words("report_left_out", { series: data.series.length, all: here.info.keys, directory: here.info.directory }) }));
  document.documentElement.dataset.report = "ready";
}

async function start() {
  const data = $("data");
  if (data) {
    document.addEventListener("click", onClick);
    await drawReport(JSON.parse(data.textContent));
    return;
  }
  here.lang = choose("lang", navigator.language.startsWith("zh") ? "zh" : "en");
  here.theme = choose("theme", matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  unknown = readAddress();
  setTheme(here.theme);
  await loadWords();
  for (let loaded = false; !loaded; ) {
    try {
      here.runs = (await ask("runs")).runs;
      if (!here.run) here.run = here.runs[0]?.id ?? "";
      await look();
      loaded = true;
    } catch (problem) {
      fill($("page"), make("p.problem", { text: problem.message }));
      document.documentElement.dataset.state = "error";
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }
  last = pageNow();
  drawTop();
  await draw();
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  window.addEventListener("popstate", takeAddress);
  let timer = 0;
  let wide = window.innerWidth;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    if (window.innerWidth === wide) return;
    wide = window.innerWidth;
    timer = setTimeout(draw, 150);
  });
  keepLooking();
}

start();
