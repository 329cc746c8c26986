// The dashboard: one stream of changes from the server, and the views that show its rows.
//
// Text of the cluster is set with textContent only. A view is made when its address is opened, and drawn whenever rows
// have changed, at most once a frame.

import { age, clock, duration, precise, signed, tone } from "./phrases.js";
import { account, bar, lossTable, partTable, percent } from "./goodput.js";
import { legend, picture } from "./picture.js";
import { compare, element, Table } from "./table.js";

const RETRY_MS = 5000; // after an answer that ends the stream
const FAULTS_SHOWN = 20;
const main = document.getElementById("main");

// The stream ----------------------------------------------------------------------------------------------------------

const sections = new Map(); // name -> Map of rows by key
let source = null;
let isFresh = false; // the next message is the first one of its connection, so it has all rows
let clockOffset = 0; // of the server's clock, in seconds
let isDue = false; // a frame will draw
const changed = new Set(); // sections that have changed since the last frame
let view = null;
let retry = 0;

const now = () => Date.now() / 1000 + clockOffset;
const rows = (name) => [...(sections.get(name)?.values() ?? [])];
const row = (name) => sections.get(name)?.get("");

function connect() {
  source?.close();
  clearTimeout(retry);
  if (document.hidden) return; // a browser permits six streams of one server, over all of its tabs
  source = new EventSource(`/events?${new URLSearchParams(view.address)}`);
  source.onopen = () => {
    isFresh = true;
    setConnection("● live", "good");
  };
  source.onmessage = (event) => apply(JSON.parse(event.data));
  source.onerror = () => {
    setConnection("✕ not connected: the dashboard does not respond", "bad");
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(connect, RETRY_MS);
  };
}

function apply({ now: time, set, gone }) {
  if (isFresh) clear();
  isFresh = false;
  clockOffset = time - Date.now() / 1000;
  for (const [name, keys] of Object.entries(gone)) {
    for (const key of keys) sections.get(name)?.delete(key);
    change(name);
  }
  for (const [name, values] of Object.entries(set)) {
    if (!sections.has(name)) sections.set(name, new Map());
    for (const [key, value] of Object.entries(values)) sections.get(name).set(key, value);
    change(name);
  }
}

function clear() {
  for (const name of sections.keys()) change(name);
  sections.clear();
}

// Draw in the next frame what shows this section.
function change(name) {
  changed.add(name);
  if (!isDue) requestAnimationFrame(redraw);
  isDue = true;
}

function redraw() {
  isDue = false;
  if (changed.has("state")) {
    const warnings = (row("state")?.warnings ?? []).map((text) => element("li", {}, `! ${text}`));
    document.getElementById("warnings").replaceChildren(...warnings);
  }
  view.draw((...names) => names.some((name) => changed.has(name)) || changed.has("state"));
  changed.clear();
}

function setConnection(text, kind) {
  const shown = document.getElementById("connection");
  shown.textContent = text;
  shown.dataset.tone = kind;
}

const isRead = () => row("state")?.is_complete;
const emptyText = (text) => () => (isRead() ? text : "Reading the cluster …");
// A heading has numbers only once the cluster was read: before, they would be too small.
const counted = (title, numbers) => (isRead() ? title + numbers : title);

// Parts of views ------------------------------------------------------------------------------------------------------

// A search field. A row has to contain each of its words.
function searchField(label, ...names) {
  const texts = new WeakMap();
  const field = element("input", { type: "search", placeholder: `${label}   /`, oninput: () => names.forEach(change) });
  field.setAttribute("aria-label", label);
  const matches = (found) => {
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!wanted.length) return true;
    if (!texts.has(found)) texts.set(found, Object.values(found).join(" ").toLowerCase());
    return wanted.every((word) => texts.get(found).includes(word));
  };
  return { field, matches };
}

// Buttons with the number of rows of each state. A pressed button shows only these.
function stateButtons(label, name) {
  const box = element("div", { className: "states", role: "group" });
  box.setAttribute("aria-label", label);
  const buttons = new Map();
  let wanted = "";
  const choose = (state) => {
    wanted = wanted === state ? "" : state;
    change(name);
  };
  const draw = (states) => {
    const counts = new Map([...buttons.keys()].map((state) => [state, 0]));
    for (const state of states) counts.set(state, (counts.get(state) ?? 0) + 1);
    for (const [state, count] of counts) {
      if (!buttons.has(state)) buttons.set(state, element("button", { type: "button", onclick: () => choose(state) }));
      const button = buttons.get(state);
      button.textContent = `${signed(state)} ${count}`;
      button.dataset.tone = tone(state);
      button.hidden = !count && wanted !== state;
      button.setAttribute("aria-pressed", wanted === state);
    }
    const sorted = [...buttons.entries()].sort(([a], [b]) => compare(a, b)).map(([, button]) => button);
    if (sorted.some((button, index) => box.children[index] !== button)) box.replaceChildren(...sorted);
  };
  return { box, draw, matches: (state) => !wanted || wanted === state };
}

function section(title, ...children) {
  const heading = element("h2", {}, title);
  return { heading, box: element("section", {}, heading, ...children) };
}

const jobAddress = (job) => `#/job/${encodeURIComponent(job.namespace)}/${encodeURIComponent(job.name)}`;
const stepSuffix = (job) => (job.is_step_counted ? " in round" : job.total_steps === null ? "" : ` / ${job.total_steps}`);
const snapshotText = (saved) => `step ${saved.step}, ${age(saved.at, now())} old`;
const stepText = (job) => (job.step === null ? "-" : `${job.step}${stepSuffix(job)}`);
const faultText = (job) => (job.fault ? `${job.fault}${job.fault_at === null ? "" : `, ${age(job.fault_at, now())} ago`}` : "-");
const byName = (a, b) => compare(a.namespace, b.namespace) || compare(a.name, b.name);
const title = (text) => {
  if (document.title !== text) document.title = text;
};

// The fleet -----------------------------------------------------------------------------------------------------------

function fleetView() {
  const search = searchField("Search jobs", "jobs");
  const states = stateButtons("Phases", "jobs");
  const heading = element("h1", {}, "Jobs");
  const columns = [
    { title: "Phase", text: (job) => signed(job.phase), tone: (job) => tone(job.phase), width: "8rem" },
    { title: "Name", text: (job) => job.name, href: jobAddress, width: "minmax(9rem, 2fr)" },
    { title: "Namespace", text: (job) => job.namespace, width: "minmax(6.5rem, 1fr)" },
    { title: "Ready", text: (job) => job.ready, width: "5rem", isNumber: true },
    { title: "Spares", text: (job) => job.spares, width: "4.5rem", isNumber: true },
    { title: "Recoveries", text: (job) => `${job.recoveries}`, order: (job) => job.recoveries, width: "6.5rem", isNumber: true },
    { title: "Last fault", text: faultText, order: (job) => -(job.fault_at ?? 0), width: "minmax(14rem, 1.5fr)" },
    { title: "Step", text: stepText, order: (job) => job.step ?? -1, width: "8.5rem", isNumber: true },
    { title: "Age", text: (job) => age(job.created_at, now()), order: (job) => -job.created_at, width: "4rem", isNumber: true },
    { title: "Attention", text: (job) => job.notes.join(" "), width: "minmax(6rem, 2fr)" },
  ];
  const open = (job) => (location.hash = jobAddress(job));
  const table = new Table({ label: "Jobs", columns, open, empty: emptyText("No jobs") });
  main.replaceChildren(element("div", { className: "bar" }, heading, states.box, search.field), table.element);
  table.element.classList.add("tall");
  const draw = () => {
    const jobs = rows("jobs");
    states.draw(jobs.map((job) => job.phase));
    const shown = jobs.filter((job) => states.matches(job.phase) && search.matches(job)).sort(byName);
    heading.textContent = counted("Jobs", shown.length === jobs.length ? ` (${jobs.length})` : ` (${shown.length} of ${jobs.length})`);
    title("Jobs – Understudy");
    table.show(shown);
  };
  return { address: { view: "fleet" }, draw, tick: () => table.draw(), search: search.field };
}

// One job -------------------------------------------------------------------------------------------------------------

function jobView(namespace, name) {
  const heading = element("h1", {}, name);
  const facts = element("dl", { className: "facts" });
  const notes = element("ul", { className: "notes" });
  const timeline = timelinePart();
  const goodput = goodputPart();
  const faults = faultsPart();
  const pods = podsPart();
  const history = historyPart();
  const parts = element("div", { hidden: true }, facts, notes, timeline.box, goodput.box, faults.box, pods.box, history.box);
  const missing = element("p", { className: "empty" });
  main.replaceChildren(element("div", { className: "bar" }, element("a", { href: "#/jobs" }, "Jobs"), ` / ${namespace} /`, heading), missing, parts);
  const drawFacts = () => {
    const job = row("job");
    parts.hidden = !job;
    missing.textContent = job ? "" : emptyText(`There is no job ${name} in namespace ${namespace}.`)();
    title(job ? `${name}: ${job.phase} – Understudy` : `${name} – Understudy`);
    if (!job) return;
    const shown = [
      ["Phase", signed(job.phase), tone(job.phase)],
      ["Ready", job.ready],
      ["Spares", job.spares],
      ["Round", job.round],
      ["Step", stepText(job)],
      ["Recoveries", `${job.recoveries}`],
      ["Last fault", faultText(job)],
      ["Coordinator", job.coordinator],
      ["Age", age(job.created_at, now())],
    ];
    if (job.target) shown.push(["Injected", job.target]);
    if (job.snapshot) shown.push(["Snapshot", snapshotText(job.snapshot)]);
    if (job.copied_snapshot) shown.push(["Copied snapshot", snapshotText(job.copied_snapshot)]);
    facts.replaceChildren(...shown.map(([term, text, kind]) => fact(term, text, kind)));
    notes.replaceChildren(...job.notes.map((note) => element("li", {}, `! ${note}`)));
  };
  const draw = (has) => {
    const isNew = parts.hidden;
    drawFacts();
    if (!row("job")) return;
    for (const part of [timeline, goodput, faults, pods, history]) if (isNew || has(...part.sections)) part.draw();
  };
  const tick = () => {
    drawFacts();
    if (row("job")) for (const part of [timeline, goodput, pods]) part.tick();
  };
  return { address: { view: "job", namespace, name }, draw, tick, search: pods.search };
}

function fact(term, text, kind) {
  const value = element("dd", {}, text);
  if (kind) value.dataset.tone = kind;
  return element("div", {}, element("dt", {}, term), value);
}

const oldestFirst = (a, b) => (a.at ?? 0) - (b.at ?? 0);

function timelinePart() {
  const windows = [["whole job", 0], ["last 7 days", 604800], ["last 24 hours", 86400], ["last 6 hours", 21600], ["last hour", 3600], ["last 10 minutes", 600]];
  const choice = element("select", { onchange: () => change("span") }, ...windows.map(([text, value]) => element("option", { value }, text)));
  choice.setAttribute("aria-label", "Part of the timeline");
  const figure = element("div", { className: "figure" });
  const key = element("p", { className: "legend" });
  const { heading, box } = section("Timeline", figure, key);
  heading.append(" ", choice);
  let drawnAt = 0;
  const draw = () => {
    drawnAt = now();
    const faults = rows("faults").sort(oldestFirst);
    const lanes = rows("lanes").sort((a, b) => a.group - b.group);
    const span = row("span");
    const width = Math.max(480, figure.clientWidth);
    figure.replaceChildren(picture({ job: row("job"), span, faults, lanes, now: now(), seconds: Number(choice.value), width }));
    const left = [span.more_lanes && `${span.more_lanes} more groups of ranks had faults`, span.more_faults && `${span.more_faults} older faults are not shown`];
    key.replaceChildren(...legend(faults), element("span", {}, left.filter(Boolean).join("; ")));
  };
  new ResizeObserver(() => row("job") && change("span")).observe(figure);
  return { box, draw, sections: ["span", "faults", "lanes"], tick: () => row("span") && !row("span").ended_at && now() - drawnAt > 5 && draw() };
}

// What the time went to. It is drawn each second while the job has not ended.
function goodputPart() {
  const figure = element("div", { className: "figure low" });
  const tables = element("div", { className: "tables" });
  const note = element("p", { className: "legend" });
  const { heading, box } = section("Time", figure, note, tables);
  const draw = () => {
    const line = row("goodput");
    box.hidden = !line;
    if (!line) return;
    const { parts, wall, ettr } = account(line, now());
    heading.textContent = `Time: ETTR ${percent(ettr)} of ${precise(wall)}`;
    figure.replaceChildren(bar(parts, Math.max(480, figure.clientWidth)));
    note.textContent = line.note && `! ${line.note}`;
    const losses = rows("lost");
    const lost = [lossTable(losses, "fault", "Lost to", line.unit), lossTable(losses, "node", "On node", line.unit)];
    tables.replaceChildren(partTable(parts), element("div", {}, ...lost));
  };
  new ResizeObserver(draw).observe(figure);
  return { box, draw, sections: ["goodput", "lost"], tick: () => row("goodput")?.part && draw() };
}

// Faults, the newest first. A list keeps the entries that are open.
function faultsPart() {
  const list = element("div", { className: "faults" });
  let most = FAULTS_SHOWN;
  const more = element("button", { type: "button", onclick: () => { most *= 2; change("faults"); } });
  const { heading, box } = section("Faults", list, more);
  const drawn = new Map(); // key -> {fault, entry}
  const draw = () => {
    const found = [...(sections.get("faults") ?? [])].sort(([, a], [, b]) => oldestFirst(b, a));
    heading.textContent = counted("Faults", found.length ? ` (${found.length + row("span").more_faults})` : ": none so far");
    const shown = found.slice(0, most).map(([key, fault]) => {
      if (drawn.get(key)?.fault !== fault) drawn.set(key, { fault, entry: faultEntry(fault, drawn.get(key)?.entry.open) });
      return drawn.get(key).entry;
    });
    if (shown.length !== list.children.length || shown.some((entry, index) => list.children[index] !== entry)) list.replaceChildren(...shown);
    more.hidden = found.length <= most;
    more.textContent = `Show more (${found.length - most})`;
  };
  return { box, draw, sections: ["faults", "span"] };
}

function faultEntry(fault, isOpen = false) {
  const end = fault.is_open ? "↻ no end yet" : fault.pause ? `pause ${fault.pause}` : fault.outcome || "ended";
  const summary = element(
    "summary",
    {},
    element("time", {}, clock(fault.at)),
    element("b", {}, fault.fault),
    element("span", {}, `${fault.first}: ${fault.symptom}`),
    element("span", { className: "end" }, `${fault.strategy}, ${end}`),
  );
  if (fault.is_open) summary.dataset.tone = "busy";
  const details = [
    ["First failure", fault.first],
    ["Symptom", fault.symptom],
    ["Traceback", fault.traceback.join("\n")],
    ["Followed", fault.consequences.join("\n")],
    ["Strategy", [fault.strategy, fault.reason].filter(Boolean).join(": ")],
    ["Pause", fault.pause],
    ["Restored", fault.restored],
    ["Lost", fault.lost],
    ["Round", fault.round === null ? "" : `${fault.round}`],
    ["Outcome", fault.outcome],
  ];
  const shown = details.filter(([, text]) => text).map(([term, text]) => fact(term, text));
  return element("details", { open: isOpen }, summary, element("dl", { className: "details" }, ...shown));
}

const GROUPS = ["members", "spares", "ended"];

function podsPart() {
  const search = searchField("Search pods", "pods");
  const states = stateButtons("States of pods", "pods");
  const columns = [
    { title: "Ranks", text: (pod) => pod.ranks, order: (pod) => pod.place * 1e6 + pod.group, width: "8rem" },
    { title: "Pod", text: (pod) => pod.name, width: "minmax(9rem, 2fr)" },
    { title: "Node", text: (pod) => pod.node || "-", width: "minmax(7rem, 1.5fr)" },
    { title: "State", text: (pod) => signed(pod.state), tone: (pod) => tone(pod.state), width: "minmax(8rem, 1fr)" },
    { title: "Role", text: (pod) => (pod.is_coordinator ? "★ coordinator" : GROUPS[pod.place].replace(/s$/, "")), width: "8rem" },
    { title: "Age", text: (pod) => age(pod.created_at, now()), order: (pod) => -pod.created_at, width: "5rem", isNumber: true },
    { title: "Message", text: (pod) => pod.message, width: "minmax(6rem, 2fr)" },
  ];
  const table = new Table({ label: "Pods", columns, empty: emptyText("No pods") });
  const { heading, box } = section("Pods", element("div", { className: "bar" }, states.box, search.field), table.element);
  const order = (a, b) => a.place - b.place || a.group - b.group || compare(a.name, b.name);
  const draw = () => {
    const pods = rows("pods");
    states.draw(pods.map((pod) => pod.state));
    const counts = GROUPS.map((group, place) => `${pods.filter((pod) => pod.place === place).length} ${group}`);
    heading.textContent = counted("Pods", `: ${counts.join(", ")}`);
    table.show(pods.filter((pod) => states.matches(pod.state) && search.matches(pod)).sort(order));
  };
  return { box, draw, sections: ["pods"], tick: () => table.draw(), search: search.field };
}

function historyPart() {
  const columns = [
    { title: "Time", text: (entry) => clock(entry.at), order: (entry) => entry.at, width: "11rem" },
    { title: "After", text: (entry) => entry.after, order: (entry) => entry.at, width: "5rem", isNumber: true },
    { title: "Entry", text: (entry) => `${entry.is_warning ? "! " : ""}${entry.kind}`, tone: (entry) => (entry.is_warning ? "bad" : ""), width: "12rem" },
    { title: "Text", text: (entry) => entry.text, width: "minmax(0, 1fr)" },
  ];
  const table = new Table({ label: "History", columns, empty: emptyText("No entries") });
  const { box } = section("History, the newest first", table.element);
  return { box, draw: () => table.show(rows("history").sort(oldestFirst).reverse()), sections: ["history"] };
}

// Spares and nodes ----------------------------------------------------------------------------------------------------

function spareView() {
  const search = searchField("Search spares", "owners", "spares");
  const ofOwners = [
    { title: "Namespace", text: (owner) => owner.namespace, width: "minmax(6rem, 1fr)" },
    { title: "Owner", text: (owner) => `${owner.kind} ${owner.owner}`, width: "minmax(9rem, 2fr)" },
    { title: "Ready", text: (owner) => owner.ready, width: "6rem", isNumber: true },
    { title: "Claimed", text: (owner) => `${owner.claimed}`, order: (owner) => owner.claimed, width: "6rem", isNumber: true },
    { title: "Available", text: (owner) => owner.available, width: "7rem", isNumber: true },
    { title: "Pool", text: (owner) => owner.pool, width: "minmax(6rem, 1fr)" },
    { title: "Attention", text: (owner) => owner.note, width: "minmax(8rem, 3fr)" },
  ];
  const ofPods = [
    { title: "Namespace", text: (pod) => pod.namespace, width: "minmax(6rem, 1fr)" },
    { title: "Spare", text: (pod) => pod.name, width: "minmax(9rem, 2fr)" },
    { title: "Owner", text: (pod) => pod.owner, width: "minmax(7rem, 1.5fr)" },
    { title: "Node", text: (pod) => pod.node, width: "minmax(7rem, 1.5fr)" },
    { title: "State", text: (pod) => signed(pod.state), tone: (pod) => tone(pod.state), width: "9rem" },
    { title: "Claimed by", text: (pod) => pod.claimed_by, width: "minmax(6rem, 1fr)" },
    { title: "Age", text: (pod) => pod.age, width: "5rem", isNumber: true },
  ];
  const owners = new Table({ label: "Owners of spares", columns: ofOwners, empty: emptyText("No job and no pool has spares") });
  const pods = new Table({ label: "Spare pods", columns: ofPods, empty: emptyText("No spares") });
  const owned = section("Jobs and pools", owners.element);
  const waiting = section("Spare pods", pods.element);
  main.replaceChildren(element("div", { className: "bar" }, element("h1", {}, "Spares"), search.field), owned.box, waiting.box);
  const draw = () => {
    title("Spares – Understudy");
    owned.heading.textContent = counted("Jobs and pools", ` (${rows("owners").length})`);
    waiting.heading.textContent = counted("Spare pods", ` (${rows("spares").length})`);
    const ownerOrder = (a, b) => compare(a.namespace, b.namespace) || compare(a.kind, b.kind) || compare(a.owner, b.owner);
    owners.show(rows("owners").filter(search.matches).sort(ownerOrder));
    pods.show(rows("spares").filter(search.matches).sort(byName));
  };
  return { address: { view: "spares" }, draw, search: search.field };
}

function nodeView() {
  const search = searchField("Search nodes", "nodes");
  const heading = element("h1", {}, "Nodes");
  const state = (node) => node.state.split(",")[0];
  const columns = [
    { title: "State", text: (node) => signed(state(node)) + node.state.slice(state(node).length), tone: (node) => tone(state(node)), width: "minmax(8rem, 1fr)" },
    { title: "Node", text: (node) => node.name, width: "minmax(8rem, 1.5fr)" },
    { title: "Findings", text: (node) => node.findings.map((text) => `! ${text}`).join("  "), width: "minmax(10rem, 3fr)" },
    { title: "Avoided by", text: (node) => node.avoided_by.join(", "), width: "minmax(6rem, 1fr)" },
    { title: "Pods", text: (node) => node.pods.join(", "), width: "minmax(8rem, 2fr)" },
  ];
  const table = new Table({ label: "Nodes", columns, empty: emptyText("No node has a pod of a job or a finding") });
  table.element.classList.add("tall");
  main.replaceChildren(element("div", { className: "bar" }, heading, search.field), table.element);
  const order = (a, b) => !a.findings.length - !b.findings.length || (state(a) !== "NotReady") - (state(b) !== "NotReady") || compare(a.name, b.name);
  const draw = () => {
    title("Nodes – Understudy");
    const found = rows("nodes").filter(search.matches).sort(order);
    const withFindings = found.filter((node) => node.findings.length).length;
    heading.textContent = counted("Nodes", ` (${found.length}, ${withFindings} with findings)`);
    table.show(found);
  };
  return { address: { view: "nodes" }, draw, search: search.field };
}

// Addresses and keys --------------------------------------------------------------------------------------------------

function route() {
  const [page, ...names] = location.hash.replace(/^#\//, "").split("/").map(decoded);
  clear();
  if (page === "job" && names.length === 2) view = jobView(...names);
  else if (page === "spares") view = spareView();
  else if (page === "nodes") view = nodeView();
  else view = fleetView();
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.hash === `#/${page === "job" || !page ? "jobs" : page}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  connect();
  change("state");
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

addEventListener("hashchange", () => {
  route();
  scrollTo(0, 0);
});
addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    view.search.focus();
    event.preventDefault();
  } else if (event.key === "Escape" && event.target === view.search) {
    view.search.value = "";
    view.search.dispatchEvent(new Event("input"));
    view.search.blur();
  }
});
document.addEventListener("visibilitychange", connect);
setInterval(() => !document.hidden && sections.size && view.tick?.(), 1000);
route();
