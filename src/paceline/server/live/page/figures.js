// Turns counts of two frames into the figures of the time between them.

import { PARTS } from "./messages.js";

/** @typedef {import("./messages.js").Frame} Frame */
/** @typedef {import("./messages.js").LatencyCounts} LatencyCounts */

/** @param {number} part @param {number} whole */
export const ratio = (part, whole) => (whole > 0 ? part / whole : null);

/** The counts of a period. @param {LatencyCounts} now @param {LatencyCounts | undefined} before
 * @returns {LatencyCounts} */
export function between(now, before) {
  if (!before || before.counts.length !== now.counts.length) return now;
  const counts = now.counts.map((count, i) => count - before.counts[i]);
  return { bounds: now.bounds, counts, total: now.total - before.total };
}

/** @param {LatencyCounts} latency */
export const values = (latency) => latency.counts.reduce((sum, count) => sum + count, 0);

/** The value that a share of all values does not exceed, within the bounds of its bucket; infinite
 * if it lies above the last bound, null if there are no values.
 * @param {LatencyCounts} latency @param {number} share @returns {number | null} */
export function quantile({ bounds, counts, total }, share) {
  const all = values({ bounds, counts, total });
  if (all === 0) return null;
  let below = 0;
  for (let i = 0; i < counts.length; i++) {
    if (below + counts[i] >= share * all && counts[i] > 0) {
      if (i >= bounds.length) return Infinity;
      const from = i > 0 ? bounds[i - 1] : 0;
      return from + ((bounds[i] - from) * (share * all - below)) / counts[i];
    }
    below += counts[i];
  }
  return Infinity;
}

/**
 * @param {Frame} now
 * @param {Frame | null} before the first frame of the period; null: there is none
 */
export function figuresOf(now, before) {
  const totals = now.totals;
  const then = before?.totals;
  const seconds = before ? now.time - before.time : now.time - now.since;
  const steps = then ? totals.steps - then.steps : now.steps.length;
  const split = Object.fromEntries(
    PARTS.map((part) => {
      const spent = before ? now.split[part] - before.split[part] : sum(now.steps, part);
      return [part, steps > 0 ? spent / steps : 0];
    }),
  );
  return {
    seconds,
    steps,
    split,
    stepTime: steps > 0 ? PARTS.reduce((time, part) => time + split[part], 0) : null,
    hitRate: then
      ? ratio(totals.prefix_hits - then.prefix_hits, totals.prefix_queries - then.prefix_queries)
      : ratio(totals.prefix_hits, totals.prefix_queries),
    acceptance: then
      ? ratio(totals.accepted - then.accepted, totals.drafted - then.drafted)
      : ratio(totals.accepted, totals.drafted),
    goodput: then && seconds > 0 ? (totals.attained - then.attained) / seconds : 0,
    attained: then
      ? ratio(
          totals.attained - then.attained,
          totals.attained + totals.missed - then.attained - then.missed,
        )
      : ratio(totals.attained, totals.attained + totals.missed),
    finished: then ? totals.finished - then.finished : 0,
    preemptions: then ? totals.preemptions - then.preemptions : 0,
    firstToken: between(now.first_token, before?.first_token),
    between: between(now.between, before?.between),
  };
}

export const RATE_S = 1; // rates of a moment are of about a second before it

/** Tokens per second just before a frame. @param {Frame} now @param {Frame | null | undefined} before */
export const rateOf = (now, before) =>
  before ? (now.totals.tokens - before.totals.tokens) / (now.time - before.time) : now.tokens_per_s;

/** @param {import("./messages.js").StepRecord[]} steps @param {typeof PARTS[number]} part */
const sum = (steps, part) => steps.reduce((time, one) => time + one.split[part], 0);
