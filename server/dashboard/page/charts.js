// The charts: of the job, or of one worker. Each point is the mean of some samples, with their least and greatest as a band.

import {bytes, count, digits, element, milliseconds, percent} from "./format.js";

// `series` of one chart; those that a track lacks are left out.
const CHARTS = [
  {id: "loss", title: "Loss", series: ["loss"], format: digits, band: true},
  {id: "accuracy", title: "Accuracy of evaluations", series: ["accuracy"], format: digits, evaluations: true},
  {id: "samples", title: "Samples a second", series: ["samples_per_second"], format: count, band: true},
  {id: "staleness", title: "Staleness, updates", series: ["staleness"], format: digits, band: true},
  {id: "bytes", title: "Pushed and pulled a second", series: ["push_bytes_per_second", "pull_bytes_per_second"], format: bytes},
  {id: "latency", title: "Push latency", series: ["push_latency_ms"], format: milliseconds, band: true},
  {id: "shares", title: "Computing, link, waiting", series: ["computing", "link", "waiting"], format: percent, range: [0, 1]},
  {id: "workers", title: "Workers", series: ["workers"], format: count, job: true},
];
// Two points that lie further apart are not joined: there was no head, or it had no time.
const GAP_MS = 5000;
const MARKED = new Set(["started", "evicted", "left", "policy", "codec", "rollback", "diverged"]);

// Points that come in pieces, the newest in each.
export class Track {
  constructor() {
    this.clear();
  }
  clear() {
    this.begin = [];
    this.end = [];
    this.series = {};
  }
  get last() {
    return this.end.length ? this.end[this.end.length - 1] : 0;
  }
  add(track) {
    const from = track.end_ms.findIndex(end => end > this.last);
    if (from < 0) return;
    const before = this.end.length, more = track.end_ms.slice(from);
    for (const [name, values] of Object.entries(track.series)) {
      const into = this.series[name] ??= {mean: Array(before).fill(null), min: Array(before).fill(null), max: Array(before).fill(null)};
      for (const part of ["mean", "min", "max"]) into[part].push(...(values[part] ?? values.mean).slice(from));
    }
    this.begin.push(...track.begin_ms.slice(from));
    this.end.push(...more);
  }
}

// The library's own legend is not used, and would write styles that the server's policy forbids.
Dygraph.PLUGINS = Dygraph.PLUGINS.filter(plugin => plugin !== Dygraph.Plugins.Legend);

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export class Charts {
  constructor(place) {
    this.charts = CHARTS.map(chart => this.make(place, chart));
    this.events = [];
    this.starts = [];
    this.seconds = 0;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const chart of this.charts) chart.graph?.updateOptions({colors: this.colors(chart)});
    });
  }

  make(place, chart) {
    const figure = element("figure"), caption = element("figcaption");
    figure.id = "chart-" + chart.id;
    const output = element("output", "–");
    caption.append(element("span", chart.title), output);
    const canvas = element("div", undefined, "chart");
    canvas.setAttribute("role", "img");
    figure.append(caption, canvas);
    place.append(figure);
    const made = {...chart, figure, output, canvas, graph: null};
    // It may have been hidden, or the window turned.
    new ResizeObserver(() => made.graph?.resize()).observe(canvas);
    return made;
  }

  colors(chart) {
    return chart.series.length === 3 ? ["--computing", "--link", "--waiting"].map(color) : ["--accent", "--link"].map(color);
  }

  since() {
    return this.seconds ? this.until - 1000 * this.seconds : 0;
  }

  // The rows of one chart, each [time, value...], a value with its band being [min, mean, max]. A gap is a row without values.
  rows(chart, track) {
    const series = chart.series.map(name => track.series[name]);
    const since = this.since();
    const rows = [];
    for (let i = 0; i < track.end.length; ++i) {
      if (track.end[i] < since) continue;
      if (i > 0 && !chart.evaluations && this.gapBetween(track.end[i - 1], track.begin[i]))
        rows.push([new Date((track.end[i - 1] + track.begin[i]) / 2), ...chart.series.map(() => chart.band ? [null, null, null] : null)]);
      rows.push([new Date(track.end[i]), ...series.map(one => {
        if (one === undefined) return null;
        return chart.band ? [one.min[i], one.mean[i], one.max[i]] : one.mean[i];
      })]);
    }
    return rows;
  }

  // Whether nobody knows what was between two points.
  gapBetween(end, begin) {
    return begin - end > GAP_MS || this.starts.some(start => start > end && start <= begin);
  }

  // `worker`: its charts, else (null) the job's. `events` are marked in all of them.
  show(job, evaluations, worker, events, seconds) {
    const keepsZoom = seconds === this.seconds;  // Another range shows all of it.
    this.seconds = seconds;
    this.until = job.last;
    this.events = events.filter(event => MARKED.has(event.kind));
    this.starts = events.filter(event => event.kind === "started").map(event => event.unix_ms);
    for (const chart of this.charts) {
      const track = chart.evaluations ? evaluations : worker ?? job;
      chart.figure.hidden = Boolean(worker) && Boolean(chart.evaluations || chart.job);
      if (chart.figure.hidden) continue;
      const rows = this.rows(chart, track);
      this.sayLast(chart, track, rows.length - track.end.filter(end => end >= this.since()).length);
      if (rows.length) {
        this.draw(chart, rows, keepsZoom);
      } else {  // Not what was there before, of another worker or time.
        chart.graph?.destroy();
        chart.graph = null;
      }
    }
  }

  sayLast(chart, track, gaps) {
    const last = {};
    for (const name of chart.series) {
      const mean = track.series[name]?.mean ?? [];
      last[name] = mean.length ? mean[mean.length - 1] : null;
    }
    const text = chart.series.map(name => chart.format(last[name])).join(" / ");
    chart.output.textContent = text;
    chart.canvas.setAttribute("aria-label", `${chart.title}: now ${text}`);
    chart.figure.dataset.last = JSON.stringify(last);
    chart.figure.dataset.points = track.end.length;
    chart.figure.dataset.gaps = gaps;
    chart.figure.dataset.end = track.last;
  }

  draw(chart, rows, keepsZoom) {
    if (chart.graph) {
      chart.graph.updateOptions(keepsZoom ? {file: rows} : {file: rows, dateWindow: null});
      return;
    }
    chart.graph = new Dygraph(chart.canvas, rows, {
      labels: ["time", ...chart.series],
      colors: this.colors(chart),
      customBars: Boolean(chart.band),
      drawPoints: Boolean(chart.evaluations),
      pointSize: 3,
      valueRange: chart.range ?? [0, null],
      animatedZooms: false,
      axes: {
        y: {axisLabelFormatter: value => chart.format(value), axisLabelWidth: 64},
        x: {pixelsPerLabel: 80},
      },
      gridLineColor: "rgba(128,128,128,0.25)",
      axisLineColor: "rgba(128,128,128,0.6)",
      underlayCallback: (context, area, graph) => this.mark(context, area, graph),
      highlightCallback: (event, x, points) => {
        chart.output.textContent = points.map(point => chart.format(point.yval)).join(" / ");
      },
    });
  }

  mark(context, area, graph) {
    const [from, to] = graph.xAxisRange();
    for (const event of this.events) {
      if (event.unix_ms < from || event.unix_ms > to) continue;
      context.strokeStyle = color(event.kind === "started" || event.kind === "left" ? "--line" : "--bad");
      context.beginPath();
      const x = Math.round(graph.toDomXCoord(event.unix_ms)) + 0.5;
      context.moveTo(x, area.y);
      context.lineTo(x, area.y + area.h);
      context.stroke();
    }
  }
}
