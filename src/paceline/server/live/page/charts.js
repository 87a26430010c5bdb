// Lines over time, drawn by uPlot: they share the time axis and the cursor.

import { byId, make, setAttribute, setText } from "./dom.js";
import { RATE_S, rateOf, ratio } from "./figures.js";
import { PARTS } from "./messages.js";
import { colour } from "./theme.js";
import uPlot from "./vendor/uPlot.min.js";
import { duration, percent, short } from "./words.js";

/** @typedef {import("./history.js").Entry} Entry */
/**
 * @typedef {{label: string, colour: string, value: (now: Entry, before: Entry | null) => number | null,
 *   isFilled?: boolean, seconds?: number}} Line
 */

/** @typedef {{title: string, format: (value: number) => string, most?: number, lines: Line[]}} Chart */

const HITS_S = 10; // admissions are rarer than steps

/** @type {Chart[]} */
const CHARTS = [
  {
    title: "Tokens per second",
    format: short,
    lines: [
      {
        label: "generated",
        colour: "series-1",
        isFilled: true,
        value: (now, before) => rateOf(now.frame, before?.frame),
      },
    ],
  },
  {
    title: "Requests",
    format: short,
    lines: [
      {
        label: "running",
        colour: "series-3",
        isFilled: true,
        value: ({ frame }) => frame.counts.running,
      },
      { label: "waiting", colour: "series-2", value: ({ frame }) => frame.counts.waiting },
    ],
  },
  {
    title: "Memory and cache",
    format: percent,
    most: 1,
    lines: [
      {
        label: "blocks held",
        colour: "series-1",
        isFilled: true,
        value: ({ frame }) => frame.usage,
      },
      { label: "prefix hits", colour: "series-3", value: hitRate, seconds: HITS_S },
    ],
  },
  {
    title: "Time of a step",
    format: duration,
    lines: [
      {
        label: "whole",
        colour: "series-1",
        isFilled: true,
        value: (now, before) => stepTime(now, before, PARTS),
      },
      {
        label: "without waiting",
        colour: "series-2",
        value: (now, before) =>
          stepTime(
            now,
            before,
            PARTS.filter((part) => part !== "wait"),
          ),
      },
    ],
  },
];

/** The mean time of some parts. @param {Entry} now @param {Entry | null} before
 * @param {readonly (keyof import("./messages.js").StepSplit)[]} parts */
function stepTime(now, before, parts) {
  const steps = before ? now.frame.totals.steps - before.frame.totals.steps : 0;
  if (!before || steps <= 0) return null;
  const spent = parts.map((part) => now.frame.split[part] - before.frame.split[part]);
  return spent.reduce((sum, time) => sum + time, 0) / steps;
}

/** @param {Entry} now @param {Entry | null} before @returns {number | null} */
function hitRate(now, before) {
  const [one, other] = [now.frame.totals, before?.frame.totals];
  if (!other) return null;
  return ratio(one.prefix_hits - other.prefix_hits, one.prefix_queries - other.prefix_queries);
}

export class Charts {
  /** @param {(time: number) => void} seek goes to a time of the engine */
  constructor(seek) {
    this.grid = byId("charts");
    this.seek = seek;
    /** @type {{plot: any, legend: Element, chart: Chart}[]} */
    this.drawn = [];
    this.offset = 0;
    this.isWall = false;
  }

  /** Draws all charts anew, for instance with the colours of another theme. */
  rebuild() {
    for (const { plot } of this.drawn) plot.destroy();
    this.drawn = [];
    this.grid.replaceChildren();
  }

  /** @param {import("./main.js").Scene} scene */
  draw(scene) {
    const isWall = scene.start.wall_offset !== null;
    if (this.drawn.length === 0 || isWall !== this.isWall) {
      this.isWall = isWall;
      this.rebuild();
      this.drawn = CHARTS.map((chart) => this.#build(chart));
      this.resize(); // only now the grid has all its columns
    }
    this.offset = scene.start.wall_offset ?? -scene.history.entries[0].frame.time;
    const points = pointsOf(scene);
    const times = points.map((one) => one.time + this.offset);
    const end = scene.entry.frame.time;
    const seconds = Number.isFinite(scene.windowS) ? scene.windowS : end - points[0].time;
    for (const { plot, chart, legend } of this.drawn) {
      const lines = chart.lines.map((line) =>
        points.map((one) => valueOf(line, one, scene.history)),
      );
      plot.batch(() => {
        plot.setData([times, ...lines], false);
        plot.setScale("x", timeSpan(end + this.offset, Math.max(seconds, 1), this.isWall));
        plot.setScale("y", { min: 0, max: chart.most ?? top(lines) });
      });
      this.#tell(plot, chart, legend);
    }
  }

  resize() {
    for (const { plot } of this.drawn)
      plot.setSize({ width: plot.root.parentElement.clientWidth, height: 132 });
  }

  /** @param {Chart} chart */
  #build(chart) {
    const legend = make("ul", "legend");
    for (const { label } of chart.lines)
      legend.append(make("li", "", make("i", "swatch"), make("span", "", label), make("b")));
    const place = make("div", "plot");
    place.setAttribute("role", "img");
    const caption = make("figcaption", "", make("span", "", chart.title), legend);
    this.grid.append(make("figure", "", caption, place));
    chart.lines.forEach((line, i) => {
      const swatch = /** @type {HTMLElement} */ (legend.children[i].firstElementChild);
      swatch.style.background = colour(line.colour);
    });
    const axis = {
      stroke: colour("faint"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { show: false },
      font: `11px ${getComputedStyle(document.body).fontFamily}`,
    };
    const plot = new /** @type {any} */ (uPlot)(
      {
        width: place.clientWidth,
        height: 132,
        padding: [8, 16, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "paceline" }, drag: { x: false, y: false }, points: { size: 6 } },
        scales: { x: { time: this.isWall, auto: false }, y: { auto: false } },
        axes: [
          { ...axis, size: 26, space: 70, grid: { show: false }, ...this.#timeValues() },
          {
            ...axis,
            size: 50,
            space: 34,
            values: (/** @type {any} */ _, /** @type {number[]} */ ticks) =>
              ticks.map(chart.format),
          },
        ],
        series: [{}, ...chart.lines.map(seriesOf)],
        hooks: { setCursor: [(/** @type {any} */ drawn) => this.#tell(drawn, chart, legend)] },
      },
      undefined,
      place,
    );
    plot.over.addEventListener("click", () => {
      if (plot.cursor.idx != null) this.seek(plot.data[0][plot.cursor.idx] - this.offset);
    });
    return { plot, legend, chart };
  }

  #timeValues() {
    if (!this.isWall)
      return {
        values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(duration),
      };
    return {
      values: (/** @type {any} */ _, /** @type {number[]} */ ticks) =>
        ticks.map((tick) => new Date(tick * 1000).toTimeString().slice(0, 8)),
    };
  }

  /** The values under the cursor, or the latest. @param {any} plot
   * @param {Chart} chart @param {Element} legend */
  #tell(plot, chart, legend) {
    const at = plot.cursor.idx ?? plot.data[0].length - 1;
    const values = chart.lines.map((_, i) => {
      const value = plot.data[i + 1]?.[at];
      return value == null ? "–" : chart.format(value);
    });
    values.forEach((value, i) => setText(legend.children[i].children[2], value));
    const words = chart.lines.map(({ label }, i) => `${label} ${values[i]}`);
    setAttribute(plot.root.parentElement, "aria-label", `${chart.title}: ${words.join(", ")}`);
  }
}

/**
 * An entry in a chart, or a gap before one: nothing was recorded, or the engine began anew.
 * @typedef {{time: number, at: number | null}} Point
 */

/** @param {import("./main.js").Scene} scene @returns {Point[]} */
function pointsOf({ history: { entries }, index, windowS }) {
  const points = [];
  const end = entries[index].frame.time;
  for (let at = index; at >= 0; at--) {
    const { time } = entries[at].frame;
    const isBackwards = at < index && time >= entries[at + 1].frame.time; // another clock
    if (isBackwards || end - time > windowS) break;
    if (at < index && entries[at].spell !== entries[at + 1].spell)
      points.push({ time: (time + entries[at + 1].frame.time) / 2, at: null });
    points.push({ time, at });
  }
  return points.reverse();
}

/** @param {Line} line @param {Point} point @param {import("./history.js").History} history */
function valueOf(line, { at }, history) {
  if (at === null) return null;
  return line.value(history.entries[at], history.windowStart(at, line.seconds ?? RATE_S));
}

/** The times of a chart. Those of a recording begin at 0, and it fills from the left.
 * @param {number} end @param {number} seconds @param {boolean} isWall */
export function timeSpan(end, seconds, isWall) {
  const min = isWall ? end - seconds : Math.max(end - seconds, 0);
  return { min, max: min + seconds };
}

/** @param {(number | null)[][]} lines */
function top(lines) {
  const most = Math.max(...lines.flat().map((value) => value ?? 0));
  return most > 0 ? most * 1.12 : 1;
}

/** @param {Line} line */
function seriesOf(line) {
  const stroke = colour(line.colour);
  const fill = line.isFilled ? stroke.replace("rgb(", "rgba(").replace(")", ", 0.1)") : undefined;
  return { stroke, fill, width: 1.5, points: { show: false } };
}
