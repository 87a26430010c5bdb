// Draws how many values fell between two bounds.

import { cleared, font, hideTip, tip } from "./canvas.js";
import { byId, setAttribute, setText } from "./dom.js";
import { quantile, values } from "./figures.js";
import { colour } from "./theme.js";
import { duration, percent, plural } from "./words.js";

/** @typedef {import("./messages.js").LatencyCounts} LatencyCounts */

const AXIS = 20;

export class Histogram {
  /** @param {string} id of its canvas @param {string} subject */
  constructor(id, subject) {
    this.canvas = byId(id);
    this.note = byId(`${id}-note`);
    this.subject = subject;
    this.first = 0;
    this.wide = 1;
    /** @type {LatencyCounts | null} */ this.latency = null;
    this.canvas.addEventListener("mousemove", (/** @type {MouseEvent} */ event) =>
      this.#hover(event),
    );
    this.canvas.addEventListener("mouseleave", hideTip);
  }

  /** @param {LatencyCounts} latency of the period */
  draw(latency) {
    this.latency = latency;
    const { counts } = latency;
    const all = values(latency);
    const { context, width, height } = cleared(this.canvas);
    const floor = height - AXIS;
    context.fillStyle = colour("line");
    context.fillRect(0, floor, width, 1);
    const words = all ? quantileWords(latency) : "no values in this period";
    setText(this.note, words);
    setAttribute(this.note, "title", plural(all, "value"));
    setAttribute(this.canvas, "aria-label", `${this.subject}: ${plural(all, "value")}, ${words}`);
    if (all === 0) return;
    this.first = Math.max(counts.findIndex((one) => one > 0) - 1, 0);
    const last = Math.min(counts.findLastIndex((one) => one > 0) + 1, counts.length - 1);
    const shown = Math.max(last - this.first + 1, 6);
    this.wide = width / shown;
    const most = Math.max(...counts);
    context.fillStyle = colour("series-1");
    for (let i = this.first; i < Math.min(this.first + shown, counts.length); i++) {
      const tall = counts[i] ? Math.max((counts[i] / most) * (floor - 6), 1.5) : 0;
      context.fillRect(this.#x(i) + 1, floor - tall, this.wide - 2, tall);
    }
    this.#bounds(context, latency, floor, shown);
  }

  /** @param {number} bucket */
  #x(bucket) {
    return (bucket - this.first) * this.wide;
  }

  /** @param {CanvasRenderingContext2D} context @param {LatencyCounts} latency
   * @param {number} floor @param {number} shown */
  #bounds(context, { bounds }, floor, shown) {
    const every = Math.ceil(52 / this.wide);
    context.font = font();
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillStyle = colour("faint");
    for (let i = this.first; i < Math.min(this.first + shown - 1, bounds.length); i += 1) {
      const x = this.#x(i + 1);
      context.fillRect(Math.round(x), floor, 1, 4);
      if ((i - this.first) % every === 0)
        context.fillText(duration(bounds[i]), x, floor + AXIS / 2 + 2);
    }
  }

  /** @param {MouseEvent} event */
  #hover(event) {
    if (!this.latency) return;
    const { bounds, counts } = this.latency;
    const at = this.first + Math.floor(event.offsetX / this.wide);
    const all = values(this.latency);
    if (all === 0 || at >= counts.length) return hideTip();
    const from = at > 0 ? duration(bounds[at - 1]) : "0";
    const range = at < bounds.length ? `${from} to ${duration(bounds[at])}` : `more than ${from}`;
    tip(event, [range, `${plural(counts[at], "value")}, ${percent(counts[at] / all)}`]);
  }
}

/** @param {LatencyCounts} latency */
function quantileWords(latency) {
  const p = (/** @type {number} */ share) => quantileOf(latency, share);
  return `p50 ${p(0.5)} · p95 ${p(0.95)} · p99 ${p(0.99)}`;
}

/** @param {LatencyCounts} latency @param {number} share */
export function quantileOf(latency, share) {
  const value = quantile(latency, share);
  return value === Infinity ? `> ${duration(latency.bounds.at(-1) ?? 0)}` : duration(value);
}
