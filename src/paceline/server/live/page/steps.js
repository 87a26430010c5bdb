// Draws the time of each step below the slots, in the same columns, split by what it went to.

import { cleared, font, hideTip, tip } from "./canvas.js";
import { byId, setAttribute } from "./dom.js";
import { PARTS, PART_WORDS } from "./messages.js";
import { colour } from "./theme.js";
import { count, duration, plural } from "./words.js";

const AXIS = 18; // CSS pixels below the bars
// From the bottom of a bar to its top: the wait for the device is the ground of the others.
const STACK = /** @type {const} */ (["wait", "plan", "launch", "commit", "report"]);

/** @param {import("./messages.js").StepRecord} record */
const whole = ({ split }) => PARTS.reduce((time, part) => time + split[part], 0);

export class StepBars {
  /** @param {import("./slots.js").SlotsPicture} slots whose columns it shares */
  constructor(slots) {
    this.slots = slots;
    this.canvas = byId("steps");
    this.canvas.addEventListener("mousemove", (/** @type {MouseEvent} */ event) =>
      this.#hover(event),
    );
    this.canvas.addEventListener("mouseleave", () => slots.leave());
  }

  draw() {
    const { geometry } = this.slots;
    if (!geometry) return;
    const { columns, left, right, wide } = geometry;
    const { context, height } = cleared(this.canvas);
    const floor = height - AXIS;
    const times = columns.map((one) => whole(one.record));
    const top = scale(times);
    context.fillStyle = colour("line");
    context.fillRect(left, floor, right - left, 1);
    context.fillRect(left, Math.round(floor * 0.08), right - left, 1);
    columns.forEach(({ record }, i) => {
      const x = right - (columns.length - i) * wide;
      let y = floor;
      for (const part of STACK) {
        const tall = (record.split[part] / top) * floor * 0.92;
        context.fillStyle = colour(`part-${part}`);
        context.fillRect(x, Math.max(y - tall, 0), wide >= 3 ? wide - 1 : wide, Math.min(tall, y));
        y -= tall;
      }
    });
    context.font = font();
    context.fillStyle = colour("faint");
    context.textBaseline = "middle";
    context.textAlign = "right";
    if (columns.length) context.fillText(duration(top), left - 8, Math.max(floor * 0.08, 7));
    context.fillText("0", left - 8, floor - 2);
    this.#numbers(context, geometry, floor);
    this.#cursor(context, geometry, floor);
    setAttribute(this.canvas, "aria-label", description(times));
  }

  /** @param {CanvasRenderingContext2D} context @param {import("./slots.js").Geometry} geometry
   * @param {number} floor */
  #numbers(context, { columns, right, wide, left }, floor) {
    const every = [5, 10, 20, 50, 100, 200, 500].find((n) => n * wide >= 90) ?? 1000;
    let latest = -Infinity; // where a number was written
    context.textAlign = "center";
    columns.forEach(({ record }, i) => {
      const x = right - (columns.length - i - 0.5) * wide;
      const before = columns[i - 1]?.record.step ?? record.step;
      const isDue = Math.floor(record.step / every) !== Math.floor(before / every);
      if (!isDue || x < left + 20 || x > right - 20 || x - latest < 60) return;
      latest = x;
      context.fillText(count(record.step), x, floor + AXIS / 2 + 2);
      context.fillRect(Math.floor(x), floor, 1, 4);
    });
  }

  /** @param {CanvasRenderingContext2D} context @param {import("./slots.js").Geometry} geometry
   * @param {number} floor */
  #cursor(context, { columns, right, wide }, floor) {
    const { hovered } = this.slots;
    if (hovered < 0 || hovered >= columns.length) return;
    context.fillStyle = colour("ink");
    context.globalAlpha = 0.5;
    context.fillRect(right - (columns.length - hovered) * wide + wide / 2, 0, 1, floor);
    context.globalAlpha = 1;
  }

  /** @param {MouseEvent} event */
  #hover(event) {
    const { slots } = this;
    if (!slots.geometry) return;
    const at = slots.columnAt(event.offsetX);
    if (at !== slots.hovered) {
      slots.hovered = at;
      slots.redraw();
    }
    if (at < 0) return hideTip();
    tip(event, stepLines(slots.geometry.columns[at]));
  }
}

/** @param {import("./history.js").Column} column */
function stepLines({ record }) {
  const drafts = record.drafts
    ? [`${record.accepted} of ${plural(record.drafts, "draft")} accepted`]
    : [];
  const preempted = record.preempted ? [`${record.preempted} preempted`] : [];
  const gap = record.left_out ? [`not recorded before it: ${plural(record.left_out, "step")}`] : [];
  return [
    `Step ${count(record.step)}: ${duration(whole(record))}`,
    `${plural(record.rows, "sequence")}, ${record.prompts} with prompt tokens`,
    `${plural(record.positions, "token")} computed, ${count(record.tokens)} generated`,
    ...drafts,
    ...preempted,
    ...PARTS.map((part) => `${PART_WORDS[part]}: ${duration(record.split[part])}`),
    ...gap,
  ];
}

/** The time at the top: a few long steps do not make all others flat. @param {number[]} times */
function scale(times) {
  const sorted = [...times].sort((a, b) => a - b);
  const most = sorted[Math.floor((sorted.length - 1) * 0.98)] || 0.001;
  const power = 10 ** Math.floor(Math.log10(most));
  return ([1, 1.5, 2, 3, 4, 5, 7.5, 10].find((n) => n * power >= most) ?? 10) * power;
}

/** @param {number[]} times */
function description(times) {
  if (times.length === 0) return "Times of steps: none yet";
  const mean = times.reduce((sum, time) => sum + time, 0) / times.length;
  return `Times of the last ${plural(times.length, "step")}: ${duration(mean)} on average, ${duration(Math.max(...times))} at most`;
}
