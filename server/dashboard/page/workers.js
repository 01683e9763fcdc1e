// The table of workers. Only the rows in sight exist, so that thousands scroll.

import {bytes, count, digits, element, milliseconds, percent, seconds} from "./format.js";

const ROW = 30;
const SPARE = 8;  // Rows beyond what is in sight.
const STATES = {MEMBER_ACTIVE: "active", MEMBER_IDLE: "idle", MEMBER_SUSPECT: "suspect", MEMBER_GONE: "gone"};
const COLUMNS = [
  {title: "Worker", key: "name"}, {title: "State", key: "state"}, {title: "Verdict", key: "verdict"},
  {title: "Its time", key: "computing"}, {title: "Samples/s", key: "samples_per_second"},
  {title: "Loss", key: "loss"}, {title: "Staleness", key: "staleness"}, {title: "Batch", key: "batch_seconds"},
  {title: "Latency", key: "push_latency_ms"}, {title: "Heard", key: "heard_ms"}, {title: "Pushed", key: "push_bytes_per_second"},
  {title: "Device", key: "utilization"},
];

function median(values) {
  const sorted = values.filter(value => value > 0).sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}

// Why a worker is slow, in words.
function verdict(worker, usualBatch) {
  if (worker.state === "gone") return worker.gone_why || "gone";
  if (worker.state === "suspect") return "not heard of";
  if (usualBatch > 0 && worker.batch_seconds > 1.5 * usualBatch)
    return `slow: computing, ${(worker.batch_seconds / usualBatch).toFixed(1)}x a batch`;
  if (worker.link > 0.4) return `slow: link, ${percent(worker.link)} of its time`;
  if (worker.waiting > 0.4) return `waits for others, ${percent(worker.waiting)}`;
  if (worker.throttled_why) return `throttled: ${worker.throttled_why}`;
  if (worker.lease_share_why) return `small leases: ${worker.lease_share_why}`;
  return worker.computing === null ? "" : "fine";
}

// Busy, full, power: what is known of it.
function deviceText(worker) {
  const parts = [worker.device];
  if (worker.utilization !== null) parts.push(percent(worker.utilization));
  if (worker.memory_used_bytes !== null) parts.push(`${bytes(worker.memory_used_bytes)} of ${bytes(worker.memory_total_bytes)}`);
  if (worker.power_watts !== null) parts.push(`${Math.round(worker.power_watts)} W`);
  return parts.join(", ");
}

export class Workers {
  // `chosen` is called with a worker's name.
  constructor(place, chosen) {
    this.place = place;
    this.chosen = chosen;
    this.all = [];
    this.shown = [];
    this.rows = new Map();
    this.sort = {key: "name", up: true};
    this.find = "";
    this.gone = true;
    this.selected = null;
    this.head = element("div", undefined, "head");
    this.head.setAttribute("role", "row");
    for (const column of COLUMNS) this.head.append(this.heading(column));
    this.body = element("div", undefined, "body");
    this.body.setAttribute("role", "rowgroup");
    place.append(this.head, this.body);
    place.addEventListener("scroll", () => this.draw());
    place.addEventListener("keydown", event => this.onKey(event));
    new ResizeObserver(() => this.draw()).observe(place);
  }

  heading(column) {
    const cell = element("div"), button = element("button", column.title);
    cell.setAttribute("role", "columnheader");
    button.type = "button";
    button.addEventListener("click", () => {
      this.sort = {key: column.key, up: this.sort.key === column.key ? !this.sort.up : true};
      for (const other of this.head.children) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", this.sort.up ? "ascending" : "descending");
      this.arrange();
    });
    cell.append(button);
    return cell;
  }

  // The columns of /api/live.
  update(columns) {
    const names = columns.name ?? [];
    this.all = names.map((_, i) => {
      const worker = {};
      for (const [key, values] of Object.entries(columns)) worker[key] = values[i];
      worker.state = STATES[worker.state] ?? worker.state;
      return worker;
    });
    const there = this.all.filter(worker => worker.state !== "gone");
    const usual = median(there.map(worker => worker.batch_seconds));
    for (const worker of this.all) worker.verdict = verdict(worker, usual);
    this.arrange();
    return there.length;
  }

  filter(find, gone) {
    this.find = find.toLowerCase();
    this.gone = gone;
    this.arrange();
  }

  arrange() {
    const {key, up} = this.sort;
    const order = (a, b) => typeof a === "string" ? a.localeCompare(b, undefined, {numeric: true}) : a - b;
    // What is not known comes last, whichever way.
    const compare = (a, b) => a === b ? 0 : a === null ? 1 : b === null ? -1 : (up ? 1 : -1) * order(a, b);
    this.shown = this.all
      .filter(worker => (this.gone || worker.state !== "gone") &&
                        `${worker.name} ${worker.state} ${worker.verdict}`.toLowerCase().includes(this.find))
      .sort((a, b) => compare(a[key], b[key]));
    this.body.style.height = `${ROW * this.shown.length}px`;
    this.place.setAttribute("aria-rowcount", this.shown.length + 1);
    this.draw();
  }

  draw() {
    const top = Math.max(0, this.place.scrollTop - this.head.offsetHeight);
    const first = Math.max(0, Math.floor(top / ROW) - SPARE);
    const last = Math.min(this.shown.length, Math.ceil((top + this.place.clientHeight) / ROW) + SPARE);
    const wanted = new Set();
    for (let i = first; i < last; ++i) {
      const worker = this.shown[i];
      wanted.add(worker.name);
      let row = this.rows.get(worker.name);
      if (!row) this.rows.set(worker.name, row = this.makeRow(worker.name));
      this.fill(row, worker, i);
    }
    for (const [name, row] of this.rows) {
      if (wanted.has(name)) continue;
      row.remove();
      this.rows.delete(name);
    }
  }

  makeRow(name) {
    const row = element("div", undefined, "row");
    row.setAttribute("role", "row");
    for (const column of COLUMNS) {
      const cell = element("span", undefined, column.key === "computing" ? "shares" : column.key);
      cell.setAttribute("role", "gridcell");
      row.append(cell);
    }
    for (const part of ["computing", "link", "waiting"]) row.children[3].append(element("i", undefined, part));
    row.addEventListener("click", () => this.choose(name));
    this.body.append(row);
    return row;
  }

  fill(row, worker, index) {
    row.style.top = `${ROW * index}px`;
    row.className = "row " + worker.state;
    row.id = "worker-" + index;
    row.dataset.name = worker.name;
    row.setAttribute("aria-rowindex", index + 2);
    row.setAttribute("aria-selected", worker.name === this.selected);
    const texts = [worker.name, worker.state, worker.verdict, null,
                   count(worker.samples_per_second) + (worker.simulated ? " sim." : ""), digits(worker.loss), digits(worker.staleness),
                   milliseconds(1000 * worker.batch_seconds), milliseconds(worker.push_latency_ms), seconds(worker.heard_ms / 1000),
                   bytes(worker.push_bytes_per_second) + (worker.push_bytes_per_second === null ? "" : "/s"), deviceText(worker)];
    texts.forEach((text, i) => {
      const cell = row.children[i];
      if (text === null || cell.textContent === text) return;
      cell.textContent = text;
      cell.title = text;
    });
    row.children[1].className = worker.state === "suspect" ? "bad" : worker.state === "active" ? "good" : "";
    row.children[2].className = /^slow|^not heard|^throttled/.test(worker.verdict) ? "bad" : "";
    const shares = row.children[3];
    for (const [i, part] of ["computing", "link", "waiting"].entries())
      shares.children[i].style.width = `${100 * (worker[part] ?? 0)}%`;
    shares.setAttribute("aria-label", `computing ${percent(worker.computing)}, link ${percent(worker.link)}, waiting ${percent(worker.waiting)}`);
    shares.title = shares.getAttribute("aria-label");
  }

  choose(name) {
    this.selected = name;
    this.chosen(name);
    this.draw();
  }

  onKey(event) {
    if (event.target !== this.place || !this.shown.length) return;
    const at = this.shown.findIndex(worker => worker.name === this.selected);
    const page = Math.max(1, Math.floor(this.place.clientHeight / ROW) - 2);
    const steps = {ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity};
    if (event.key === "Enter" && at >= 0) {
      this.chosen(this.selected);
    } else if (event.key in steps) {
      const to = Math.min(this.shown.length - 1, Math.max(0, at + steps[event.key]));
      this.selected = this.shown[to].name;
      const top = to * ROW, view = this.place.clientHeight - this.head.offsetHeight - ROW;
      if (top < this.place.scrollTop || top > this.place.scrollTop + view) this.place.scrollTop = Math.max(0, top - view / 2);
      this.draw();
      this.place.setAttribute("aria-activedescendant", "worker-" + to);
    } else {
      return;
    }
    event.preventDefault();
  }
}
