// What the time of a job went to: one bar with all parts, and a list with their names, times and shares.
//
// Each part has a number, which the bar and the list share, and a pattern. Colors only repeat them.

import { precise } from "./phrases.js";
import { element } from "./table.js";
import { draw, titled } from "./picture.js";

const BAR_PX = 30;
const LEAST_PX = 4; // of a part, so that a small one stays visible
const DIGIT_PX = 8;
const UNDECIDED = "sinceLastStep";
const STEPPED = ["productive", "repeated"];
// The lines of each pattern, in a square of 8. Parts that are not lost to faults have few lines.
const LINES = new Map([
  ["productive", ""],
  ["repeated", "M0 4H8"],
  ["detection", "M-2 2L2 -2M0 8L8 0M6 10L10 6"],
  ["restart", "M-2 6L2 10M0 0L8 8M6 -2L10 2"],
  ["capacity", "M0 0L8 8M8 0L0 8"],
  ["starting", "M4 0V8"],
  ["suspended", "M2 0V8M6 0V8"],
  ["ending", "M0 2H8M0 6H8"],
  ["withoutSteps", "M3 4H5"],
  ["unknown", "M1 2H3M5 6H7"],
  [UNDECIDED, "M4 3V5"],
]);

// The parts that have time until now: field, number, seconds, share, meaning. As understudy_protocol/goodput.py has it.
export function account(line, now) {
  const seconds = { ...line.seconds };
  if (line.part) {
    const end = Math.max(now, line.since);
    const until = line.is_stepping ? Math.min(Math.max(line.since, line.stepped_at ?? line.since), end) : end;
    seconds[line.part] += until - line.since;
    seconds[UNDECIDED] += end - until;
  }
  const wall = Object.values(seconds).reduce((sum, part) => sum + part, 0);
  const hasStepped = STEPPED.some((field) => seconds[field] > 0);
  const parts = Object.entries(seconds)
    .map(([field, part], index) => ({ field, number: index + 1, seconds: part, share: wall ? part / wall : 0, meaning: line.meanings[field] }))
    .filter((part) => part.seconds > 0);
  return { parts, wall, ettr: hasStepped && wall ? (seconds.productive ?? 0) / wall : null };
}

export function percent(share) {
  return share === null ? "-" : `${(100 * share).toFixed(1)} %`;
}

export function bar(parts, width) {
  const free = Math.max(0, width - LEAST_PX * parts.length);
  let x = 0;
  const drawn = parts.map((part) => {
    const long = LEAST_PX + part.share * free;
    const box = { x, y: 0, width: long, height: BAR_PX };
    const shapes = [draw("rect", { ...box, class: `part ${part.field}` }), draw("rect", { ...box, fill: `url(#part-${part.field})`, class: "edge" })];
    const text = `${part.number}`;
    if (long > DIGIT_PX * (text.length + 1)) {
      const middle = x + long / 2;
      const room = DIGIT_PX * text.length + 4;
      shapes.push(draw("rect", { x: middle - room / 2, y: 7, width: room, height: 16, rx: 3, class: "plate" }));
      shapes.push(draw("text", { x: middle, y: 19, "text-anchor": "middle" }, text));
    }
    x += long;
    return titled(draw("g", {}, ...shapes), describe(part));
  });
  const label = `What the time went to: ${parts.map(describe).join(", ")}`;
  return draw("svg", { class: "picture parts", width, height: BAR_PX, role: "img", "aria-label": label }, patterns(), ...drawn);
}

function describe(part) {
  return `${part.number} ${part.field} ${precise(part.seconds)}, ${percent(part.share)}`;
}

function patterns() {
  const made = [...LINES].map(([field, lines]) => {
    const size = { width: 8, height: 8, patternUnits: "userSpaceOnUse" };
    return draw("pattern", { id: `part-${field}`, ...size }, draw("path", { d: lines || "M0 0", class: "grain" }));
  });
  return draw("defs", {}, ...made);
}

function swatch(part) {
  const box = { x: 0.5, y: 0.5, width: 23, height: 15 };
  const shapes = [draw("rect", { ...box, class: `part ${part.field}` }), draw("rect", { ...box, fill: `url(#part-${part.field})`, class: "edge" })];
  return draw("svg", { width: 24, height: 16, "aria-hidden": "true", class: "picture" }, ...shapes);
}

export function partTable(parts) {
  const rows = parts.map((part) => [
    element("span", {}, swatch(part), ` ${part.number} ${part.field}`),
    precise(part.seconds),
    percent(part.share),
    part.meaning,
  ]);
  return table("Parts of the time", ["Part", "Time", "Share", "Meaning"], rows);
}

export function lossTable(losses, by, title, unit) {
  const found = losses.filter((loss) => loss.by === by).sort((a, b) => b.device_seconds - a.device_seconds);
  const rows = found.map((loss) => [loss.name || "not known", precise(loss.seconds), loss.device_seconds.toFixed(0)]);
  return rows.length ? table(title, [title, "Time", unit], rows) : "";
}

// The second column and the third have numbers.
function table(label, heads, rows) {
  const cells = (kind, texts) => texts.map((text, index) => element(kind, { className: index === 1 || index === 2 ? "number" : "" }, text));
  const head = element("thead", {}, element("tr", {}, ...cells("th", heads)));
  const body = element("tbody", {}, ...rows.map((texts) => element("tr", {}, ...cells("td", texts))));
  const made = element("table", { className: "small-table" }, head, body);
  made.setAttribute("aria-label", label);
  return made;
}
