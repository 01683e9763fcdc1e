// How numbers and times are written on the page. What is not known is a dash.

const known = value => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  if (!known(value)) return "–";
  if (value >= 1e9) return (value / 1e9).toFixed(2) + " G";
  if (value >= 1e6) return (value / 1e6).toFixed(2) + " M";
  if (value >= 1e4) return (value / 1e3).toFixed(1) + " k";
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toPrecision(3);
}

export function bytes(value) {
  if (!known(value)) return "–";
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return (value / size).toFixed(1) + " " + unit;
  }
  return value.toFixed(0) + " B";
}

export const digits = value => known(value) ? value.toPrecision(4) : "–";
export const percent = value => known(value) ? Math.round(100 * value) + " %" : "–";

export function seconds(value) {
  if (!known(value)) return "–";
  if (value < 10) return value.toFixed(1) + " s";
  if (value < 120) return value.toFixed(0) + " s";
  if (value < 7200) return (value / 60).toFixed(0) + " min";
  if (value < 172800) return (value / 3600).toFixed(1) + " h";
  return (value / 86400).toFixed(1) + " d";
}

export function milliseconds(value) {
  if (!known(value)) return "–";
  if (value >= 1000) return seconds(value / 1000);
  return (value < 10 ? value.toFixed(2) : value.toFixed(0)) + " ms";
}

// The time of day, with the date if that is not today's.
export function when(ms) {
  const date = new Date(ms), today = new Date();
  const time = date.toLocaleTimeString([], {hour12: false});
  return date.toDateString() === today.toDateString() ? time : date.toLocaleDateString() + " " + time;
}

// An element with text, never markup: names and messages may be anything.
export function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
