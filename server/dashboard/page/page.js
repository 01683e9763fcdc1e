// Asks the server each second, and shows what it says.

import {Charts, Track} from "./charts.js";
import {bytes, count, digits, element, seconds, when} from "./format.js";
import {Workers} from "./workers.js";

const INTERVAL_MS = 1000;
const HIDDEN_INTERVAL_MS = 5000;
const PATIENCE_MS = 5000;
// The server thins older points; all are fetched anew once so many have come.
const POINTS_MAX = 6000;
// Events and evaluations may be told a moment after their time.
const OVERLAP_MS = 5000;
const EVENTS_SHOWN = 500;

const KINDS = {
  members: new Set(["joined", "restarted", "returned", "suspected", "heard", "left", "evicted", "server"]),
  job: new Set(["started", "running", "draining", "finished", "policy", "codec", "rollback", "diverged", "standing", "moving", "clock"]),
  snapshots: new Set(["snapshot", "snapshot_failed"]),
};
const ALARMING = new Set(["evicted", "suspected", "diverged", "snapshot_failed", "standing", "rollback"]);
const PHASES = {PHASE_WAITING: "not begun", PHASE_RUNNING: "running", PHASE_DRAINING: "draining", PHASE_FINISHED: "finished"};

const SERVERS = {
  SERVER_AWAITED: ["away", "bad"], SERVER_STOPPED: ["stopped in good order", "warn"], SERVER_RECOVERING: ["restores its state", "warn"],
  SERVER_READY: ["there", "good"],
};

const at = id => document.getElementById(id);

// `worker` is chosen, `shown` is whose points are there; `ahead`: the server's clock is so many ms ahead of this machine's.
const state = {live: null, worker: null, shown: null, events: new Map(), goneSince: 0, stale: 0, ahead: 0, whole: true, asked: 0};
const job = new Track(), evaluations = new Track(), workerTrack = new Track();
const charts = new Charts(at("charts"));
const workers = new Workers(at("workers"), name => chooseWorker(name));

async function get(path) {
  const response = await fetch(path, {signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store"});
  if (!response.ok) throw new Error((await response.text()).trim());
  state.stale = Number(response.headers.get("X-Status-Age-Ms")) || 0;
  state.ahead = (Number(response.headers.get("X-Now-Ms")) || Date.now()) - Date.now();
  return response.json();
}

const serverNow = () => Date.now() + state.ahead;

function forget() {
  job.clear();
  evaluations.clear();
  workerTrack.clear();
  state.events.clear();
}

function chooseWorker(name) {
  state.worker = name;
  state.whole = true;  // The server gives both from one time on.
  ++state.asked;       // Answers that are under way are of another worker.
  at("whole-job").hidden = name === null;
  refresh();
}

// What has come since the last point, or (`state.whole`) all there is, in place of what is shown until then.
async function refreshHistory() {
  const asked = ++state.asked, whole = state.whole, worker = state.worker;
  const since = whole ? 0 : Math.max(0, job.last - OVERLAP_MS);
  const history = await get(`api/history?since=${since}` + (worker === null ? "" : `&worker=${encodeURIComponent(worker)}`));
  if (asked !== state.asked) return;  // It has been asked again meanwhile, for another worker or from another time on.
  if (whole) forget();
  state.shown = worker;
  job.add(history.job);
  evaluations.add(history.evaluations);
  if (history.worker) workerTrack.add(history.worker);
  for (const event of history.events) state.events.set(event.number, event);
  state.whole = job.end.length > POINTS_MAX;
}

async function refresh() {
  try {
    state.live = await get("api/live");
    // It may have gone back to an older state, or its clock was set back.
    if (state.goneSince || state.live.last_ms < job.last - OVERLAP_MS) state.whole = true;
    await refreshHistory();
    state.goneSince = 0;
  } catch (error) {
    state.goneSince ||= Date.now();
    state.problem = error.message;
  }
  show();
}

function fact(title, value, className) {
  const box = element("div");
  box.append(element("dt", title), element("dd", value, className));
  return box;
}

function progressOf(status) {
  return status.samples_total > 0 ? status.samples_completed / status.samples_total : 0;
}

function syncOf(bound) {
  return bound < 0 ? "asp" : bound > 0 ? `ssp:${bound}` : "bsp";
}

function showFacts() {
  const status = state.live.job, snapshot = status.snapshot ?? {}, now = serverNow();
  const pushAge = state.live.last_push_ms ? (now - state.live.last_push_ms) / 1000 : null;
  const snapshotAge = snapshot.unix_ms ? (now - snapshot.unix_ms) / 1000 : null;
  const accuracy = evaluations.series.accuracy?.mean.at(-1), loss = job.series.loss?.mean.at(-1);
  const running = status.phase === "PHASE_RUNNING";
  at("facts").replaceChildren(
    fact("last push", pushAge === null ? "none yet" : seconds(Math.max(0, pushAge)) + " ago", running && pushAge > 10 ? "bad" : ""),
    fact("last snapshot", snapshotAge === null ? "none yet" : `${snapshot.generation}, ${seconds(Math.max(0, snapshotAge))} ago`),
    fact("samples a second", count(status.samples_per_second)),
    fact("data epochs", `${status.data_epochs_completed.toFixed(2)} of ${status.job?.data_epochs ?? 0}`),
    fact("loss", digits(loss)),
    fact("accuracy", digits(accuracy)),
    fact("policy", status.job?.policy?.sync || syncOf(status.job?.bound ?? 0)),
    fact("codec auto", status.codec_choice?.push ?? "–"),
    fact("updates", count(status.updates)),
    fact("push log", status.log_budget_bytes ? `${bytes(status.log_bytes)} of ${bytes(status.log_budget_bytes)}` : "off"),
    fact("server up", seconds(status.uptime_seconds)),
    fact("parameters", count(status.parameters)));
  at("progress").value = progressOf(status);
  at("model").textContent = status.model;
  at("phase").textContent = `${PHASES[status.phase] ?? status.phase}, ${(100 * progressOf(status)).toFixed(1)} %`;
  document.title = `${status.model || "recon"}: ${PHASES[status.phase] ?? status.phase}`;
}

function showAlerts() {
  const alerts = [];
  const add = (text, className) => alerts.push(element("p", text, className));
  if (state.goneSince) {
    add(`The server does not answer since ${when(state.goneSince)} (${state.problem || "no connection"}). Trying again each second; what follows is of before.`);
  } else if (state.stale > 5000) {
    add(`The server is busy: these numbers are ${seconds(state.stale / 1000)} old.`, "warn");
  }
  const status = state.live?.job;
  if (status) {
    if (status.divergence) add(`Training diverges: ${status.divergence}`);
    if (status.standing_seconds > 0) add(`The job has not moved for ${seconds(status.standing_seconds)}: ${status.waits_for}`);
    if (status.not_begun_seconds > 0) add(`The job has not begun for ${seconds(status.not_begun_seconds)}: ${status.waits_for}`, "warn");
    if (status.snapshot?.last_error) add(`A snapshot failed: ${status.snapshot.last_error}`, "warn");
    if (status.holds_up) add(status.holds_up, "warn");
  }
  const texts = alerts.map(alert => alert.textContent).join("\n");
  if (at("alerts").dataset.texts === texts) return;  // Screen readers would read it again.
  at("alerts").dataset.texts = texts;
  at("alerts").replaceChildren(...alerts);
}

function serverRow(server) {
  const row = element("tr"), away = server.state === "SERVER_AWAITED" || server.state === "SERVER_STOPPED";
  const [state, className] = SERVERS[server.state] ?? [server.state, ""];
  const log = server.log_budget_bytes ? `${bytes(server.log_bytes)} of ${bytes(server.log_budget_bytes)}` : "off";
  // One that has never come, as far as this head knows, has no address.
  const never = away && !server.address;
  row.append(element("td", server.server === 0 ? "0, the head" : server.server),
             element("td", never ? "has not come" : away ? `${state} for ${seconds(server.heard_ms / 1000)}` : state, className),
             element("td", server.address || "–"), element("td", server.shards), element("td", count(server.parameters)),
             element("td", count(server.pushes)), element("td", seconds(server.heard_ms / 1000) + " ago"), element("td", log));
  return row;
}

// The head tells of the others: it is there.
function showServers() {
  const status = state.live.job, others = status.servers ?? [];
  at("servers-section").hidden = others.length === 0;
  if (!others.length) return;
  const of = what => others.reduce((sum, server) => sum + Number(server[what]), 0);
  const head = {server: 0, state: "SERVER_READY", address: location.hostname, shards: status.shards - of("shards"),
                parameters: status.parameters - of("parameters"), pushes: status.pushes, heard_ms: state.stale,
                log_bytes: status.log_bytes, log_budget_bytes: status.log_budget_bytes};
  const there = 1 + others.filter(server => server.state === "SERVER_READY").length;
  at("servers-count").textContent = `(${there} of ${others.length + 1} there)`;
  at("servers").replaceChildren(...[head, ...others].map(serverRow));
}

function showEvents() {
  const kinds = KINDS[at("kinds").value];
  const events = [...state.events.values()].filter(event => !kinds || kinds.has(event.kind)).sort((a, b) => b.number - a.number);
  // Another day's times have a date.
  const key = `${events[0]?.number} ${events[0]?.unix_ms} ${events.length} ${at("kinds").value} ${new Date().toDateString()}`;
  if (at("events").dataset.key === key) return;
  at("events").dataset.key = key;
  at("events").replaceChildren(...events.slice(0, EVENTS_SHOWN).map(event => {
    const line = element("li"), time = element("time", when(event.unix_ms));
    time.dateTime = new Date(event.unix_ms).toISOString();
    line.dataset.kind = event.kind;
    line.append(time, element("strong", event.kind.replace("_", " "), ALARMING.has(event.kind) ? "bad" : ""),
                element("span", event.subject ? `${event.subject}: ${event.text}` : event.text));
    return line;
  }));
}

function show() {
  showAlerts();
  if (!state.live) return;
  const there = workers.update(state.live.workers);
  at("workers-count").textContent = `(${there} there)`;
  const worker = state.shown === null ? null : workerTrack;
  at("scope").textContent = state.shown ?? "the job";
  charts.show(job, evaluations, worker, [...state.events.values()], Number(at("range").value));
  showFacts();
  showServers();
  showEvents();
}

async function verify(generation) {
  try {
    const response = await fetch(`api/snapshots/verify?generation=${generation}`,
                                 {method: "POST", headers: {"X-Recon": "1"}, signal: AbortSignal.timeout(PATIENCE_MS)});
    if (!response.ok) throw new Error((await response.text()).trim());
  } catch (error) {
    at("snapshots-note").textContent = `Snapshot ${generation} is not verified: ${error.message}`;
    return;
  }
  await refreshSnapshots();
}

function verifyNote(check) {
  if (!check) return "";
  if (check.running) return `Verifying snapshot ${check.generation}: chunk ${check.done} of ${check.chunks || "?"}`;
  return check.ok ? `Snapshot ${check.generation} is whole: ${check.chunks} chunks read back.` : `SNAPSHOT ${check.generation} IS DAMAGED OR GONE: ${check.error}`;
}

function snapshotRow(snapshot) {
  const row = element("tr"), button = element("button", "Verify"), cell = element("td");
  button.type = "button";
  button.setAttribute("aria-label", `Verify snapshot ${snapshot.generation}`);
  button.dataset.generation = snapshot.generation;
  button.addEventListener("click", () => verify(snapshot.generation));
  cell.append(button);
  const number = snapshot.generation + (snapshot.pinned ? " pinned" : "") + (snapshot.non_finite_values ? " NOT FINITE" : "");
  if (snapshot.error) {
    const damage = element("td", snapshot.error, "bad damage");
    damage.colSpan = 3;
    row.append(element("td", number, "bad"), damage, cell);
    return row;
  }
  const root = element("td", snapshot.state_root.slice(0, 12) + "…");
  root.title = snapshot.state_root;
  row.append(element("td", number, snapshot.non_finite_values ? "bad" : ""),
             element("td", seconds(Math.max(0, (serverNow() - snapshot.created_unix_ms) / 1000))), root,
             element("td", `${bytes(snapshot.stored_bytes)} of ${bytes(snapshot.raw_bytes)}`), cell);
  return row;
}

async function refreshSnapshots() {
  if (state.goneSince) return;
  try {
    const list = await get("api/snapshots");
    const notes = [list.error, verifyNote(list.verify)].filter(Boolean).join(" ");
    at("snapshots-note").textContent = notes || (list.loading ? "Looking…" : list.snapshots.length ? "" : "None yet.");
    const focused = document.activeElement?.dataset?.generation;
    at("snapshots").replaceChildren(...list.snapshots.map(snapshotRow));
    if (focused) document.querySelector(`button[data-generation="${focused}"]`)?.focus();
  } catch (error) {
    at("snapshots-note").textContent = error.message;
  }
}

async function loop(work, interval) {
  try {
    await work();
  } finally {
    setTimeout(() => loop(work, interval), document.hidden ? HIDDEN_INTERVAL_MS : interval);
  }
}

at("whole-job").addEventListener("click", () => {
  workers.selected = null;
  chooseWorker(null);
});
at("range").addEventListener("change", show);
at("kinds").addEventListener("change", show);
for (const id of ["find", "show-gone"]) {
  at(id).addEventListener("input", () => workers.filter(at("find").value, at("show-gone").checked));
}
loop(refresh, INTERVAL_MS);
loop(refreshSnapshots, 2 * INTERVAL_MS);
