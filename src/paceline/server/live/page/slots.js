// Draws the slots: a row for each, a column for each step, the newest step at the right.

import { cleared, font, hideTip, mono, tip } from "./canvas.js";
import { byId, say, setAttribute, setText, shortId, show } from "./dom.js";
import { CELLS } from "./messages.js";
import { channels, colour } from "./theme.js";
import { count, plural } from "./words.js";

const MOST_HEIGHT = 512;
const ROW_HEIGHTS = [20, 16, 13, 11, 8, 6, 5, 4, 3, 2, 1];
const LABELLED = 11; // from this height on, a row has the name of its request
const WIDTHS = [1, 2, 3, 4, 6, 8, 12, 18];
const CODES = Object.keys(CELLS);

/**
 * Where rows and columns are, in CSS pixels: columns end at the right edge.
 * @typedef {{columns: import("./history.js").Column[], left: number, right: number, wide: number,
 *   rows: number, tall: number, group: number}} Geometry
 */

export class SlotsPicture {
  /** @param {(id: string) => void} open @param {() => void} redraw */
  constructor(open, redraw) {
    this.canvas = byId("slots");
    this.open = open;
    this.redraw = redraw;
    this.zoom = 3;
    this.hovered = -1; // column
    this.chosen = -1; // slot, by the keyboard
    /** @type {Geometry | null} */ this.geometry = null;
    /** @type {import("./main.js").Scene | null} */ this.scene = null;
    this.bitmap = document.createElement("canvas");
    this.canvas.addEventListener("mousemove", (/** @type {MouseEvent} */ event) =>
      this.#hover(event),
    );
    this.canvas.addEventListener("mouseleave", () => this.leave());
    this.canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => this.#click(event));
    this.canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) =>
      this.#key(event),
    );
    this.canvas.addEventListener("blur", () => this.#choose(-1));
  }

  /** @param {number} by */
  widen(by) {
    this.zoom = Math.min(Math.max(this.zoom + by, 0), WIDTHS.length - 1);
    this.redraw();
  }

  leave() {
    this.hovered = -1;
    hideTip();
    this.redraw();
  }

  /** @param {import("./main.js").Scene} scene */
  draw(scene) {
    this.scene = scene;
    const geometry = (this.geometry = this.#measure(scene));
    const height = Math.ceil(geometry.rows / geometry.group) * geometry.tall;
    const { context, width } = cleared(this.canvas, height);
    context.fillStyle = colour("cell-vacant");
    context.fillRect(geometry.left, 0, width - geometry.left, height);
    if (geometry.columns.length > 0) this.#cells(context, geometry, height);
    this.#breaks(context, geometry, height);
    this.#labels(context, geometry, scene);
    this.#cursor(context, geometry, height);
    this.#describe(geometry, scene);
  }

  /** @param {import("./main.js").Scene} scene @returns {Geometry} */
  #measure({ history, entry }) {
    const rows = Math.max(Math.min(Math.max(history.rows, 4), entry.frame.slots), 1);
    const pixel = 1 / (window.devicePixelRatio || 1);
    const fitting = ROW_HEIGHTS.find((tall) => rows * tall <= MOST_HEIGHT);
    const group = fitting ? 1 : Math.max(Math.ceil((rows * pixel) / MOST_HEIGHT), 1);
    const tall =
      fitting ?? pixel * Math.max(Math.floor(MOST_HEIGHT / pixel / Math.ceil(rows / group)), 1);
    const left = tall >= LABELLED ? 142 : 52;
    const right = this.canvas.clientWidth;
    const wide = WIDTHS[this.zoom];
    const columns = history.columnsUntil(entry, Math.floor((right - left) / wide));
    return { columns, left, right, wide, rows, tall, group };
  }

  /** @param {CanvasRenderingContext2D} context @param {Geometry} geometry @param {number} height */
  #cells(context, geometry, height) {
    const { columns, wide, tall, rows, group, right } = geometry;
    const lines = Math.ceil(rows / group);
    const image = context.createImageData(columns.length, lines);
    this.#paint(new Uint32Array(image.data.buffer), geometry, lines);
    this.bitmap.width = columns.length;
    this.bitmap.height = lines;
    this.bitmap.getContext("2d")?.putImageData(image, 0, 0);
    const from = right - columns.length * wide;
    context.drawImage(this.bitmap, from, 0, columns.length * wide, lines * tall);
    context.fillStyle = colour("surface");
    if (tall >= 4)
      for (let i = 1; i < lines; i++) context.fillRect(from, i * tall - 1, right - from, 1);
    if (wide >= 6)
      for (let i = 0; i < columns.length; i++) context.fillRect(from + i * wide, 0, 1, height);
    if (tall >= 4 && wide >= 2) this.#seams(context, geometry, from);
  }

  /** @param {Uint32Array} pixels @param {Geometry} geometry @param {number} lines */
  #paint(pixels, { columns, rows, group }, lines) {
    const [full, pale] = palettes();
    const weight = new Uint8Array(128);
    for (const code of CODES)
      weight[code.charCodeAt(0)] = CELLS[/** @type {keyof CELLS} */ (code)].weight;
    const mask = this.#selection(columns);
    columns.forEach(({ record }, x) => {
      const { cells } = record;
      for (let line = 0; line < lines; line++) {
        let code = 46; // vacant
        let isShown = mask === null;
        const end = Math.min((line + 1) * group, rows, cells.length);
        for (let slot = line * group; slot < end; slot++) {
          const one = cells.charCodeAt(slot);
          const isMarked = mask !== null && mask(slot, x);
          if (isMarked && !isShown) [code, isShown] = [one, true];
          else if (isMarked === isShown || mask === null)
            if (weight[one] > weight[code]) code = one;
        }
        pixels[x + line * columns.length] = (isShown ? full : pale)[code];
      }
    });
  }

  /** Where the selected request is; null: none is selected.
   * @param {import("./history.js").Column[]} columns */
  #selection(columns) {
    const { history, selected } = /** @type {import("./main.js").Scene} */ (this.scene);
    if (!selected) return null;
    /** @type {Map<string, Map<number, [number, number][]>>} */
    const found = new Map();
    for (const run of new Set(columns.map((one) => one.run))) {
      const slots = new Map();
      for (const [slot, seats] of history.seats.get(run) ?? []) {
        const spans = seats.flatMap((seat, i) =>
          seat[2] === selected ? [[seat[1], seats[i + 1]?.[1] ?? Infinity]] : [],
        );
        if (spans.length) slots.set(slot, spans);
      }
      found.set(run, slots);
    }
    return (/** @type {number} */ slot, /** @type {number} */ x) => {
      const { run, record } = columns[x];
      const spans = found.get(run)?.get(slot);
      return (
        spans !== undefined && spans.some(([from, to]) => from <= record.step && record.step < to)
      );
    };
  }

  /** A line where a slot changes hands. @param {CanvasRenderingContext2D} context
   * @param {Geometry} geometry @param {number} from */
  #seams(context, { columns, wide, tall, rows }, from) {
    const { history } = /** @type {import("./main.js").Scene} */ (this.scene);
    /** @type {Map<string, number>} */
    const places = new Map(columns.map(({ run, record }, x) => [`${run} ${record.step}`, x]));
    for (const run of new Set(columns.map((one) => one.run)))
      for (const [slot, seats] of history.seats.get(run) ?? [])
        for (const seat of seats) {
          const x = places.get(`${run} ${seat[1]}`);
          if (x !== undefined && slot < rows)
            context.fillRect(from + x * wide, slot * tall, 1, tall);
        }
  }

  /** Where the step loop began anew, where frames are missing, and where steps are.
   * @param {CanvasRenderingContext2D} context @param {Geometry} geometry @param {number} height */
  #breaks(context, { columns, wide, right }, height) {
    columns.forEach((column, x) => {
      const at = right - (columns.length - x) * wide;
      if (x > 0 && columns[x - 1].run !== column.run) {
        context.fillStyle = colour("bad");
        context.fillRect(at, 0, 2, height);
      } else if (column.isApart) {
        context.fillStyle = colour("ink");
        for (let y = 0; y < height; y += 6) context.fillRect(at, y, 1, 3);
      } else if (column.record.left_out > 0) {
        context.fillStyle = colour("faint");
        context.fillRect(at, 0, 1, 3);
      }
    });
  }

  /** @param {CanvasRenderingContext2D} context @param {Geometry} geometry
   * @param {import("./main.js").Scene} scene */
  #labels(context, { columns, left, rows, tall, group }, { history, entry, selected }) {
    const latest = columns.at(-1);
    const isIdle = takenSlots(latest, entry) === 0; // the latest step was the last one for now
    context.textBaseline = "middle";
    if (tall < LABELLED) {
      const every = [4, 8, 16, 32, 64, 128, 256].find((n) => (n / group) * tall >= 24) ?? 512;
      context.font = font();
      context.textAlign = "right";
      context.fillStyle = colour("faint");
      const floor = (rows / group) * tall;
      for (let slot = 0; slot < rows; slot += every) {
        const y = Math.max((slot / group) * tall + tall / 2, 6);
        if (y < floor - 6) context.fillText(count(slot), left - 8, y);
      }
      return;
    }
    for (let slot = 0; slot < rows; slot++) {
      const y = slot * tall + tall / 2;
      const isTaken = latest && !isIdle && (latest.record.cells[slot] ?? ".") !== ".";
      const seat = isTaken ? history.seatAt(latest.run, slot, latest.record.step) : null;
      context.font = font(10);
      context.textAlign = "right";
      context.fillStyle = colour("faint");
      context.fillText(String(slot), 18, y);
      if (!seat) continue;
      context.font = mono(11);
      context.textAlign = "left";
      context.fillStyle = colour(seat[2] === selected ? "accent" : "soft");
      context.fillText(
        shortId(seat[2], 15) + (seat[3] >= 0 ? `/${seat[3]}` : ""),
        26,
        y,
        left - 34,
      );
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Geometry} geometry @param {number} height */
  #cursor(context, { columns, left, right, wide, tall, group }, height) {
    if (this.hovered >= 0 && this.hovered < columns.length) {
      context.fillStyle = colour("ink");
      context.globalAlpha = 0.5;
      context.fillRect(right - (columns.length - this.hovered) * wide + wide / 2, 0, 1, height);
      context.globalAlpha = 1;
    }
    if (this.chosen >= 0) {
      context.strokeStyle = colour("accent");
      context.lineWidth = 1.5;
      const top = Math.floor(this.chosen / group) * tall;
      context.strokeRect(left + 0.75, top - 0.75, right - left - 1.5, tall + 1);
    }
  }

  /** @param {Geometry} geometry @param {import("./main.js").Scene} scene */
  #describe({ columns, group, rows }, { entry, history }) {
    const { slots } = entry.frame;
    const each = group > 1 ? ` · ${group} in a row` : "";
    const steps = stepsWords(columns);
    const taken = `${count(slotsInUse(history, entry))} of ${count(slots)} taken`;
    setText(byId("slots-note"), `${taken} · ${steps}${each}`);
    setAttribute(byId("slots-note"), "title", missingWords(columns));
    const shown =
      rows < slots ? ` The first ${count(rows)} are shown; the others were never taken.` : "";
    setAttribute(
      this.canvas,
      "aria-label",
      `Slots: ${taken}, ${steps}.${shown} ${missingWords(columns)}`,
    );
    show(byId("slots-empty"), columns.length === 0);
    if (columns.length === 0)
      setText(byId("slots-empty"), "No steps yet. Send a request, and it appears here.");
  }

  /** The column under the mouse; -1: none. @param {number} x CSS pixels from the left */
  columnAt(x) {
    const { columns, right, wide } = /** @type {Geometry} */ (this.geometry);
    const at = columns.length - 1 - Math.floor((right - 1 - x) / wide);
    return at >= 0 && at < columns.length ? at : -1;
  }

  /** The slots under the mouse. @param {number} y @returns {number[]} */
  #slotsAt(y) {
    const { tall, group, rows } = /** @type {Geometry} */ (this.geometry);
    const first = Math.floor(y / tall) * group;
    return Array.from({ length: group }, (_, i) => first + i).filter((slot) => slot < rows);
  }

  /** @param {number} slot @param {number} x column */
  #at(slot, x) {
    const { columns } = /** @type {Geometry} */ (this.geometry);
    const { history } = /** @type {import("./main.js").Scene} */ (this.scene);
    const { run, record } = columns[x];
    const cell = CELLS[/** @type {keyof CELLS} */ (record.cells[slot] ?? ".")] ?? CELLS["."];
    const seat = cell.name === "vacant" ? null : history.seatAt(run, slot, record.step);
    return { cell, seat, record };
  }

  /** @param {MouseEvent} event */
  #hover(event) {
    if (!this.geometry || !this.scene) return;
    const x = this.columnAt(event.offsetX);
    if (x !== this.hovered) {
      this.hovered = x;
      this.redraw();
    }
    const slots = this.#slotsAt(event.offsetY);
    if (x < 0 || slots.length === 0) return hideTip();
    const found = slots.map((slot) => ({ slot, ...this.#at(slot, x) }));
    const named = found.filter((one) => one.seat).slice(0, 4);
    const { slot, cell, seat, record } = named[0] ?? found[0];
    const place = slots.length > 1 ? `slots ${slots[0]} to ${slots.at(-1)}` : `slot ${slot}`;
    const where = `${place}, step ${count(record.step)}`;
    if (!seat) return tip(event, [`${where}: ${cell.words}`]);
    if (named.length > 1)
      return tip(event, [where, ...named.map((one) => `${one.seat?.[2]}: ${one.cell.words}`)]);
    tip(event, [seat[2], `${cell.words} · ${where}`, `prompt of ${plural(seat[4], "token")}`]);
  }

  /** @param {MouseEvent} event */
  #click(event) {
    if (!this.geometry) return;
    const x = this.columnAt(event.offsetX);
    const inGutter = event.offsetX < this.geometry.left;
    const column = inGutter ? this.geometry.columns.length - 1 : x;
    if (column < 0) return;
    for (const slot of this.#slotsAt(event.offsetY)) {
      const { seat } = this.#at(slot, column);
      if (seat) return this.open(seat[2]);
    }
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const moves = { ArrowUp: -1, ArrowDown: 1, PageUp: -16, PageDown: 16 };
    const by = moves[/** @type {keyof moves} */ (event.key)];
    if (by && this.geometry) {
      this.#choose(Math.min(Math.max(this.chosen + by, 0), this.geometry.rows - 1));
      event.preventDefault();
    } else if (event.key === "Enter" && this.chosen >= 0 && this.geometry?.columns.length) {
      const { seat } = this.#at(this.chosen, this.geometry.columns.length - 1);
      if (seat) this.open(seat[2]);
    }
  }

  /** @param {number} slot */
  #choose(slot) {
    this.chosen = slot;
    this.redraw();
    if (slot < 0 || !this.geometry?.columns.length) return;
    const { cell, seat } = this.#at(slot, this.geometry.columns.length - 1);
    say(`Slot ${slot}: ${seat ? `${seat[2]}, ` : ""}${cell.words}`);
  }
}

/** Slots that sequences are in: a request may have several sequences.
 * @param {import("./history.js").Column | undefined} latest
 * @param {import("./history.js").Entry} entry */
export function takenSlots(latest, { run, frame }) {
  if (!latest || latest.run !== run || frame.counts.running === 0) return 0;
  let taken = 0;
  for (const cell of latest.record.cells) if (cell !== "." && cell !== "x") taken += 1;
  return taken;
}

/** Slots that are taken now: one for each request that runs, unless requests have several sequences.
 * Cells show the latest step, after which requests may have begun and ended.
 * @param {import("./history.js").History} history
 * @param {import("./history.js").Entry} entry */
export function slotsInUse(history, entry) {
  const latest = history.columnsUntil(entry, 1).at(-1);
  const isSeveral = latest !== undefined && history.hasFamilies(latest);
  return isSeveral ? takenSlots(latest, entry) : entry.frame.counts.running;
}

/** Which steps are drawn. @param {import("./history.js").Column[]} columns */
function stepsWords(columns) {
  const last = columns.at(-1);
  if (!last) return "no steps yet";
  const own = columns.filter((one) => one.run === last.run);
  const after = own.length < columns.length ? ", after a restart" : "";
  return `steps ${count(own[0].record.step)} to ${count(last.record.step)}${after}`;
}

/** How many steps between those that are drawn have no record.
 * @param {import("./history.js").Column[]} columns */
function missingWords(columns) {
  const missing = columns.slice(1).reduce((sum, one) => sum + one.record.left_out, 0);
  return missing ? `${plural(missing, "step")} between these are not recorded` : "";
}

/** Pixels of each cell by its code: as they are, and pale. @returns {[Uint32Array, Uint32Array]} */
function palettes() {
  const full = new Uint32Array(128);
  const pale = new Uint32Array(128);
  const ground = channels("cell-vacant");
  for (const code of CODES) {
    const rgb = channels(`cell-${CELLS[/** @type {keyof CELLS} */ (code)].name}`);
    const faded = rgb.map((value, i) => Math.round(ground[i] + (value - ground[i]) * 0.22));
    full[code.charCodeAt(0)] = pixel(rgb);
    pale[code.charCodeAt(0)] = pixel(faded);
  }
  return [full, pale];
}

/** @param {number[]} rgb */
const pixel = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
