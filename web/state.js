// What is looked at: the address, the language, the theme, and questions to the server.

/** Everything that pages share. */
export const here = {
  run: "",
  page: "run",
  params: new Map(),
  info: null,
  runs: [],
  incidents: [],
  words: {},
  lang: "en",
  theme: "light",
  data: null, // of a report: answers by question
};

/** In this order in the address. */
const PARAMS = ["q", "s", "side", "by", "cut", "rank", "rows", "unfold", "from", "to", "step", "at", "k", "y", "i", "r2", "rank2", "table"];

export function words(key, values = {}) {
  let text = here.words[key] ?? key;
  for (const [name, value] of Object.entries(values)) text = text.replaceAll(`{${name}}`, String(value));
  return text;
}

/** Whether an answer's values are each of one step. */
export function coarseText(answer) {
  if (!answer.coarse) return "";
  return words("coarse_n", { steps: answer.coarse }) + (answer.coming ? words("coming") : "");
}

/** The word for a quantity. */
export function quantityName(quantity) {
  return words(`q_${quantity}`);
}

/** Makes an element: class, text, attributes, listeners by "onclick" …, children. */
export function make(tag, given = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "text") element.textContent = value;
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** Puts these in the place of what is there; null and false are left out. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
}

/** A name that may be broken behind its dots. */
export function dotted(name) {
  return name.split(/(?<=\.)/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function questionOf(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  return `${path}?${query}`;
}

async function fetchAnswer(path, params) {
  const question = questionOf(path, { r: here.run, ...params });
  if (here.data) {
    const found = here.data[decodeURIComponent(question.replaceAll("+", " "))];
    if (!found) throw new Error(words("not_in_report"));
    return { json: () => found.json, bytes: () => Uint8Array.from(atob(found.bytes), (c) => c.charCodeAt(0)).buffer };
  }
  let response;
  try {
    response = await fetch(`/api/${question}`, { credentials: "same-origin" });
  } catch {
    throw new Error(words("not_connected"));
  }
  if (!response.ok) {
    let why = response.statusText;
    try {
      why = (await response.json()).error;
    } catch {
      // The status says it.
    }
    throw new Error(why);
  }
  return { json: () => response.json(), bytes: () => response.arrayBuffer() };
}

export async function ask(path, params = {}) {
  return (await fetchAnswer(path, params)).json();
}

/** A map: what its head says, and `cells`. */
export async function askMap(params, path = "map") {
  const bytes = await (await fetchAnswer(path, params)).bytes();
  const size = new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, size)));
  head.cells = new Uint8Array(bytes, 4 + size);
  return head;
}

export function param(name, fallback = "") {
  return here.params.get(name) ?? fallback;
}

export function numberParam(name) {
  const text = here.params.get(name);
  return text !== undefined && /^\d+$/.test(text) ? Number(text) : null;
}

function addressOf(page, params) {
  const query = PARAMS.filter((name) => params.has(name)).map((name) => `${name}=${encodeURIComponent(params.get(name)).replaceAll("%2C", ",").replaceAll("%2F", "/").replaceAll("*", "*")}`);
  return `/r/${encodeURIComponent(here.run)}/${page}${query.length ? `?${query.join("&")}` : ""}`;
}

export function linkTo(page, params = {}) {
  return addressOf(page, new Map(Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "").map(([k, v]) => [k, String(v)])));
}

let onChange = () => {};
export function whenChanged(listener) {
  onChange = listener;
}

/** Changes parameters; null or "" takes one away. push: the way back leads here. */
export function change(params, { push = false, page = here.page, draw = true, keep = true } = {}) {
  if (!keep) here.params.clear();
  for (const [name, value] of Object.entries(params)) {
    if (value === null || value === undefined || value === "") here.params.delete(name);
    else here.params.set(name, String(value));
  }
  const other = page !== here.page;
  here.page = page;
  if (!here.data) {
    const address = addressOf(page, here.params);
    if (push || other) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }
  if (draw) onChange(other);
}

/** Goes to a page as a link would. */
export function go(page, params = {}) {
  change(params, { push: true, page, keep: false });
}

/** Takes over what the address says; returns the parameters that mean nothing. */
export function readAddress() {
  const parts = location.pathname.split("/").map(decodeURIComponent);
  here.run = parts[1] === "r" ? (parts[2] ?? "") : "";
  here.page = parts[3] || "run";
  here.params.clear();
  const unknown = [];
  for (const [name, value] of new URLSearchParams(location.search)) {
    if (PARAMS.includes(name)) here.params.set(name, value);
    else if (name === "lang" || name === "theme") here[name] = value;
    else unknown.push(name);
  }
  return unknown;
}

/** The answer of the last call alone counts. */
export function latest() {
  let number = 0;
  return () => {
    const mine = ++number;
    return () => mine === number;
  };
}
