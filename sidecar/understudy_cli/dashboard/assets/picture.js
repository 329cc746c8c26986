// The picture of a job's timeline: training and pauses, faults, rounds, losses, and the pods of the ranks that had faults.
//
// Shapes and patterns carry the meaning, and colors only repeat it. The list of faults has the same facts as text.

import { clock, duration } from "./phrases.js";

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 128;
const RIGHT = 12;
const LETTER_PX = 6.3;
const STRIP_PX = 30;
const LANE_PX = 22;

// Each kind of fault has a shape of its own, in a square from -6 to 6.
const SHAPES = new Map([
  ["Process", "M0 -6L6 5H-6Z"],
  ["Pod", "M-5 -5H5V5H-5Z"],
  ["Node", "M0 -6.5L6.5 0L0 6.5L-6.5 0Z"],
  ["Hang", "M-5 -6H5L0 0L5 6H-5L0 0Z"],
  ["WeightUpdate", "M-2 -6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z"],
]);
const OTHER = "M0 -5A5 5 0 1 1 0 5A5 5 0 1 1 0 -5Z";

export function draw(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function words(x, y, text, className = "", anchor = "start") {
  return draw("text", { x, y, class: className, "text-anchor": anchor }, text);
}

export function titled(made, title) {
  made.append(draw("title", {}, title));
  return made;
}

export function marker(kind, isOpen, x = 0, y = 0) {
  const className = `fault${isOpen ? " open" : ""}`;
  return draw("path", { d: SHAPES.get(kind) ?? OTHER, class: className, transform: `translate(${x} ${y})` });
}

// The shapes of the kinds that occur, with their names, for people who see the picture for the first time.
export function legend(faults) {
  const kinds = [...new Set(faults.map((fault) => fault.fault))].sort();
  const entries = kinds.map((kind) => [marker(kind, false, 8, 8), kind]);
  if (faults.some((fault) => fault.is_open)) entries.push([marker("Process", true, 8, 8), "hollow: no end yet"]);
  entries.push([draw("rect", { x: 1, y: 3, width: 14, height: 10, class: "trains" }), "trains"]);
  entries.push([draw("rect", { x: 1, y: 3, width: 14, height: 10, class: "pause" }), "pause"]);
  return entries.map(([shape, text]) => {
    const made = document.createElement("span");
    made.append(draw("svg", { width: 16, height: 16, "aria-hidden": "true" }, hatch(), shape), ` ${text}`);
    return made;
  });
}

function hatch() {
  const line = draw("path", { d: "M-1 5L5 -1M1 7L7 1", class: "hatch" });
  const pattern = { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse" };
  return draw("defs", {}, draw("pattern", pattern, line));
}

// job: {phase, created_at}; span; faults: the oldest first; lanes. seconds: of the window; 0 for the whole job.
export function picture({ job, span, faults, lanes, now, seconds, width }) {
  const end = span.ended_at ?? now;
  const began = span.started_at ?? job.created_at ?? end;
  const from = Math.min(seconds ? Math.max(began, end - seconds) : began, end - 60);
  const x = (at) => LEFT + ((Math.min(Math.max(at, from), end) - from) / (end - from)) * (width - LEFT - RIGHT);
  const seen = faults.filter((fault) => fault.at !== null && (fault.ended_at ?? end) >= from);
  const parts = [hatch()];
  let y = 12;
  y = drawTraining(parts, { x, y, began, from, end, seen });
  y = drawRounds(parts, { x, y, seen });
  y = drawStrip(parts, { x, y, seen, label: "pause", of: (fault) => fault.pause_s, text: (fault) => fault.pause });
  const steps = (fault) => (fault.lost_steps === null ? "" : `${fault.lost_steps} steps`);
  y = drawStrip(parts, { x, y, seen, label: "lost", of: (fault) => fault.lost_steps, text: steps });
  y = drawLanes(parts, { x, y, lanes, from, end });
  y = drawAxis(parts, { x, y, from, end, width });
  const open = seen.filter((fault) => fault.is_open).length;
  const label = `Timeline from ${clock(from)} to ${clock(end)}: ${seen.length} faults, ${open} without an end`;
  return draw("svg", { class: "picture", width, height: y, role: "img", "aria-label": label }, ...parts);
}

function drawTraining(parts, { x, y, began, from, end, seen }) {
  parts.push(words(0, y + 4, "faults"), words(0, y + 28, "training"));
  const start = x(Math.max(began, from));
  parts.push(draw("rect", { x: start, y: y + 16, width: Math.max(1, x(end) - start), height: 16, class: "trains" }));
  for (const fault of seen) {
    const [left, right] = [x(fault.at), x(fault.ended_at ?? end)];
    const box = { x: left, y: y + 16, width: Math.max(2, right - left), height: 16 };
    parts.push(draw("rect", { ...box, class: "gap" }), draw("rect", { ...box, class: "pause" }));
  }
  for (const fault of seen) parts.push(titled(marker(fault.fault, fault.is_open, x(fault.at), y), faultTitle(fault)));
  return y + 36;
}

function faultTitle(fault) {
  const lost = [fault.pause && `pause ${fault.pause}`, fault.lost].filter(Boolean).join(", ");
  const strategy = fault.strategy || "no strategy yet";
  return [`${clock(fault.at)} ${fault.fault}: ${fault.first}`, fault.symptom, strategy, lost].filter(Boolean).join("\n");
}

// The number of a round where it began. A number without room is left out.
function drawRounds(parts, { x, y, seen }) {
  if (!seen.some((fault) => fault.round !== null)) return y;
  parts.push(words(0, y + 12, "round"));
  let free = -Infinity;
  for (const fault of seen) {
    if (fault.round === null || fault.ended_at === null) continue;
    const [text, at] = [`${fault.round}`, x(fault.ended_at)];
    if (at < free) continue;
    parts.push(draw("path", { d: `M${at} ${y}v6`, class: "tick" }), words(at + 3, y + 12, text, "small"));
    free = at + 10 + text.length * LETTER_PX;
  }
  return y + 18;
}

// A bar for each fault. The square root makes small losses visible beside large ones.
function drawStrip(parts, { x, y, seen, label, of, text }) {
  const found = seen.filter((fault) => of(fault) > 0);
  if (!found.length) return y;
  const most = found.reduce((a, b) => (of(b) > of(a) ? b : a));
  parts.push(words(0, y + 14, label), words(0, y + 26, `most: ${text(most)}`, "small"));
  parts.push(draw("path", { d: `M${LEFT} ${y + STRIP_PX}H${x(Infinity)}`, class: "base" }));
  for (const fault of found) {
    const height = Math.max(2, Math.sqrt(of(fault) / of(most)) * (STRIP_PX - 4));
    const bar = { x: x(fault.at) - 2, y: y + STRIP_PX - height, width: 4, height, class: "loss" };
    parts.push(titled(draw("rect", bar), `${clock(fault.at)} ${label}: ${text(fault)}`));
  }
  return y + STRIP_PX + 8;
}

function drawLanes(parts, { x, y, lanes, from, end }) {
  for (const lane of lanes) {
    parts.push(words(0, y + 14, lane.ranks));
    lane.holders.forEach((holder, index) => {
      if ((holder.end ?? end) < from) return;
      const [left, right] = [x(holder.start ?? from), x(holder.end ?? end)];
      const box = { x: left, y: y + 2, width: Math.max(2, right - left), height: LANE_PX - 6 };
      const until = holder.end === null ? "now" : clock(holder.end);
      const title = `${lane.ranks}: pod ${holder.pod}, node ${holder.node || "not known"}\n${clock(holder.start)} to ${until}`;
      parts.push(titled(draw("rect", { ...box, rx: 2, class: `holder${index % 2 ? " other" : ""}` }), title));
      const letters = Math.floor((box.width - 14) / LETTER_PX);
      const text = letters >= holder.pod.length ? holder.pod : `…${holder.pod.slice(holder.pod.length - letters + 1)}`;
      if (letters > 5) parts.push(words(left + 10, y + 14, text, "small holder-name"));
    });
    for (const [at, kind] of lane.faults) {
      if (at >= from) parts.push(titled(marker(kind, false, x(at), y + LANE_PX / 2 - 1), `${clock(at)} ${kind}`));
    }
    y += LANE_PX;
  }
  return y;
}

function drawAxis(parts, { x, y, from, end, width }) {
  const steps = [10, 30, 60, 300, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000];
  const room = Math.max(2, Math.floor((width - LEFT) / 130));
  const step = steps.find((seconds) => (end - from) / seconds <= room) ?? 31536000;
  const zone = new Date(end * 1000).getTimezoneOffset() * 60;
  parts.push(draw("path", { d: `M${LEFT} ${y + 6}H${width - RIGHT}`, class: "base" }));
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= end; at += step) {
    parts.push(draw("path", { d: `M${x(at)} ${y + 6}v5`, class: "tick" }));
    const anchor = x(at) > width - 50 ? "end" : x(at) < LEFT + 30 ? "start" : "middle";
    parts.push(words(x(at), y + 23, axisText(at, step), "small", anchor));
  }
  parts.push(words(0, y + 23, duration(end - from), "small"));
  return y + 30;
}

function axisText(at, step) {
  const date = new Date(at * 1000);
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: step < 60 ? "2-digit" : undefined });
  if (step >= 86400) return day;
  return date.getHours() === 0 && date.getMinutes() === 0 ? day : time;
}
