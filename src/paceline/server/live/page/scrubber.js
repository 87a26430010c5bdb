// The bar at the bottom: all kept frames at a glance, and the one that is shown.

import { cleared } from "./canvas.js";
import { byId, setAttribute, setText } from "./dom.js";
import { colour } from "./theme.js";
import { clock, count, duration, short } from "./words.js";

export class Scrubber {
  /** @param {(index: number) => void} goTo */
  constructor(goTo) {
    this.canvas = byId("overview");
    this.range = byId("scrub");
    this.range.addEventListener("input", () => goTo(Number(this.range.value)));
  }

  /** @param {import("./main.js").Scene} scene */
  draw(scene) {
    const { history, index, entry, start } = scene;
    const last = history.entries.length - 1;
    setAttribute(this.range, "max", String(last));
    if (Number(this.range.value) !== index) this.range.value = String(index);
    const origin = history.entries[0].frame.time;
    const behind = history.entries[last].frame.time - entry.frame.time;
    const time = clock(entry.frame.time, start.wall_offset, origin);
    const back = behind > 0.005 && index < last ? ` · −${duration(behind)}` : "";
    setText(byId("moment"), `${time}${back}`);
    const words = `${time}, frame ${count(index + 1)} of ${count(last + 1)}, ${short(entry.frame.tokens_per_s)} tokens per second`;
    setAttribute(this.range, "aria-valuetext", words);
    this.#overview(scene);
  }

  /** @param {import("./main.js").Scene} scene */
  #overview({ history, index }) {
    const { entries } = history;
    const { context, width, height } = cleared(this.canvas);
    const x = (/** @type {number} */ i) =>
      entries.length > 1 ? (i / (entries.length - 1)) * (width - 2) : width - 2;
    const floor = height - 5;
    const most = Math.max(...entries.map((one) => one.frame.tokens_per_s), 1);
    context.fillStyle = colour("track");
    context.fillRect(0, 0, width, height);
    context.beginPath();
    context.moveTo(0, floor);
    entries.forEach(({ frame }, i) =>
      context.lineTo(x(i), floor - (frame.tokens_per_s / most) * (floor - 4)),
    );
    context.lineTo(x(entries.length - 1), floor);
    context.fillStyle = colour("series-1");
    context.globalAlpha = 0.35;
    context.fill();
    context.globalAlpha = 1;
    entries.forEach((one, i) => {
      const before = entries[i - 1];
      if (!before) return;
      if (before.run !== one.run) mark(context, "bad", x(i), 0, height, 2);
      else if (one.frame.totals.preemptions > before.frame.totals.preemptions)
        mark(context, "cell-preempted", x(i), floor + 1, 4, 1);
      if (one.lost > 0) mark(context, "warn", x(i), 0, 4, 2);
    });
    mark(context, "ink", x(index), 0, height, 2);
    context.globalAlpha = 0.55;
    context.fillStyle = colour("surface");
    context.fillRect(x(index) + 2, 0, width, height);
    context.globalAlpha = 1;
  }
}

/** @param {CanvasRenderingContext2D} context @param {string} name @param {number} x @param {number} y
 * @param {number} height @param {number} width */
function mark(context, name, x, y, height, width) {
  context.fillStyle = colour(name);
  context.fillRect(Math.round(x), y, width, height);
}
