// Numbers, names and times as people read them.

const MINUS = "\u2212";

/** A value as the server says it: a number, "NaN", "+Inf", "-Inf" or null. */
export function toNumber(value) {
  if (typeof value === "number") return value;
  return value === "+Inf" ? Infinity : value === "-Inf" ? -Infinity : NaN;
}

export function isOdd(value) {
  return typeof value === "string";
}

export function numberText(value, digits = 4) {
  if (value === null || value === undefined) return "\u2014";
  if (typeof value === "string") return value.replace("-", MINUS);
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+Inf" : MINUS + "Inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size >= 0.01 && size < 1000) {
    text = size.toPrecision(digits);
    if (text.includes(".")) text = text.replace(/\.?0+$/, "");
    if (text.includes("e")) text = String(Math.round(size));
  } else {
    const [mantissa, exponent] = size.toExponential(digits - 1).split("e");
    const short = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
    text = `${short}e${Number(exponent)}`;
  }
  return value < 0 ? MINUS + text : text;
}

/** As short as an axis likes it, and long enough to tell its values apart. */
export function axisTexts(values) {
  let digits = 3;
  while (digits < 9 && new Set(values.map((value) => numberText(value, digits))).size < values.length) digits++;
  return (value) => numberText(value, digits);
}

/** "torch.float32" without whose it is. */
export function dtypeText(dtype) {
  return (dtype ?? "").replace("torch.", "");
}

export function wholeText(value) {
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

export function shareText(part, whole) {
  if (!whole) return "0";
  const percent = (100 * part) / whole;
  if (percent === 0) return "0";
  return percent < 0.005 ? wholeText(part) : `${numberText(percent, percent < 10 ? 2 : 3)} %`;
}

/** Bytes: "41 GB" is 41e9 of them. */
export function sizeText(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let value = bytes;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${numberText(value, 3)} ${units[unit]}`;
}

export function timeText(seconds) {
  if (!Number.isFinite(seconds)) return "\u2014";
  if (seconds === 0) return "0";
  if (seconds < 1e-3) return `${numberText(seconds * 1e6, 3)} \u00b5s`;
  if (seconds < 1) return `${numberText(seconds * 1e3, 3)} ms`;
  if (seconds < 60) return `${numberText(seconds, 3)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function clockText(milliseconds) {
  return milliseconds ? new Date(milliseconds).toTimeString().slice(0, 8) : "";
}

export function distanceText(distance) {
  return `${numberText(distance, 2)} MAD`;
}

const WRAPPERS = /(^|\.)(?:(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+/g;

/** A name without the parts that wrappers add. */
export function plainName(name) {
  const plain = name.replace(WRAPPERS, "$1");
  return plain.startsWith(".") ? `(root)${plain}` : plain;
}

/** A row as a map calls it: from the number of its layer on, without a side that all have. */
export function rowLabel(row, layer, side) {
  let name = plainName(row);
  if (layer && row.startsWith(layer)) name = row.slice(layer.lastIndexOf(".") + 1);
  if (side && name.endsWith(side)) name = name.slice(0, -side.length);
  return name || "\u00b7";
}

/** At most so many characters: parts in the middle go, never the last one. */
export function fitName(name, room) {
  if (name.length <= room) return name;
  const parts = name.split(".");
  for (let k = 2; k < parts.length; k++) {
    const short = `${parts[0]}.\u2026${parts.slice(k).join(".")}`;
    if (short.length <= room) return short;
  }
  return `\u2026${parts[parts.length - 1]}`;
}

const ORDINARY = { norm: "norm", max_abs: "max |x|", mean: "mean", std: "std", min: "min", max: "max", zeros: "zeros" };

export function statName(stat) {
  return ORDINARY[stat] ?? stat;
}
