// Numbers and times as people read them.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** @param {number} value */
export const count = (value) => WHOLE.format(Math.round(value));

/** 12,345 as 12.3K. @param {number} value */
export const short = (value) => (value < 10_000 ? count(value) : SHORT.format(value));

/** @param {number} value @param {string} noun */
export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** @param {number | null} share */
export const percent = (share) =>
  share === null ? "–" : `${(share * 100).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;

/** @param {number | null} seconds */
export function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  const [value, unit] = scaled(seconds);
  return `${value} ${unit}`;
}

/** A duration that something was counted for: no fractions of a second. @param {number} seconds */
export const period = (seconds) => (seconds < 1.5 ? "second" : duration(seconds));

/** A duration as its figure and its unit. @param {number} seconds @returns {[string, string]} */
export function scaled(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return ["0", "ms"];
  if (size < 0.00095) return [figure(seconds * 1e6), "µs"];
  if (size < 0.95) return [figure(seconds * 1e3), "ms"];
  if (size < 120) return [figure(seconds), "s"];
  const whole = Math.round(size);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return [`${minutes}:${String(whole % 60).padStart(2, "0")}`, "min"];
  return [`${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}`, "h"];
}

/** Two or three digits that matter. @param {number} value */
function figure(value) {
  const size = Math.abs(value);
  return value.toFixed(size < 9.95 ? 1 : 0);
}

/** A time of day, or seconds since the first frame where the engine's clock is not a real one.
 * @param {number} time @param {number | null} wallOffset @param {number} origin */
export function clock(time, wallOffset, origin) {
  if (wallOffset === null) return `${(time - origin).toFixed(2)} s`;
  const at = new Date((time + wallOffset) * 1000);
  const parts = [at.getHours(), at.getMinutes(), at.getSeconds()];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

/** `WAITING_FOR_A_GRAMMAR` as `waiting for a grammar`, `FINISHED_LENGTH` as `finished: length`.
 * @param {string} state */
export const stateWords = (state) =>
  state
    .toLowerCase()
    .replace(/^finished_/, "finished: ")
    .replaceAll("_", " ");
