// Keeps the frames of one engine, its steps as columns, and who sat in which slot.

import { RATE_S, rateOf } from "./figures.js";

/** @typedef {import("./messages.js").Frame} Frame */
/** @typedef {import("./messages.js").Seat} Seat */
/** @typedef {import("./messages.js").StepRecord} StepRecord */
/**
 * A step that can be drawn. `isApart`: frames are missing between the column before and this one,
 * because they were lost or because nothing was recorded.
 * @typedef {{run: string, record: StepRecord, isApart: boolean}} Column
 */
/**
 * A frame with its place: `end` is the number of the first column after it, `lost` how many frames
 * were lost before it. Counts of two entries can be compared within a `spell`, in which everything
 * was recorded.
 * @typedef {{run: string, spell: number, frame: Frame, end: number, lost: number}} Entry
 */

const LEAST_KEPT = 1200;
const SEATS_PER_SLOT = 256;

export class History {
  constructor() {
    /** @type {Entry[]} */ this.entries = [];
    /** @type {Column[]} */ this.columns = [];
    /** @type {Map<string, Map<number, Seat[]>>} seats by run and slot */ this.seats = new Map();
    this.dropped = 0; // columns that were kept once
    this.droppedEntries = 0;
    this.lost = 0; // frames
    this.rows = 0; // the highest slot that was taken, and one
    this.lives = 0; // how often the numbers of a run began anew without a new run
    this.kept = LEAST_KEPT;
  }

  get last() {
    return this.entries.at(-1) ?? null;
  }

  /** @param {number} kept what the server keeps */
  keep(kept) {
    this.kept = Math.max(kept, LEAST_KEPT);
  }

  /** After a connection was made anew, the server may be another one, with the same numbers.
   * @param {Frame} frame */
  isStranger(frame) {
    const last = this.last;
    if (!last || frame.run !== last.frame.run) return false;
    const same = this.entries.findLast(
      (one) => one.frame.run === frame.run && one.frame.number === frame.number,
    );
    if (same) return same.frame.time !== frame.time;
    return frame.number < last.frame.number && frame.time > last.frame.time;
  }

  /** Returns whether the frame is new. @param {Frame} frame */
  add(frame) {
    if (this.isStranger(frame)) this.lives += 1;
    const run = `${this.lives}.${frame.run}`;
    const last = this.last;
    if (last && last.run === run && frame.number <= last.frame.number) return false;
    const follows = last !== null && last.run === run;
    const lost = follows ? frame.number - last.frame.number - 1 : 0;
    // A server does not record while no page is open.
    const isResumed = follows && lost === 0 && frame.since > last.frame.time;
    const spell = (last?.spell ?? 0) + (follows && !isResumed ? 0 : 1);
    this.lost += lost;
    this.#seat(run, frame.seats);
    frame.steps.forEach((record, i) => {
      this.columns.push({ run, record, isApart: i === 0 && (lost > 0 || isResumed) });
      this.rows = Math.max(this.rows, record.cells.length);
    });
    this.entries.push({ run, spell, frame, end: this.dropped + this.columns.length, lost });
    this.#forget();
    return true;
  }

  /** @param {string} run @param {Seat[]} seats */
  #seat(run, seats) {
    let slots = this.seats.get(run);
    if (!slots) this.seats.set(run, (slots = new Map()));
    for (const seat of seats) {
      const taken = slots.get(seat[0]) ?? [];
      const at = taken.findLastIndex((one) => one[1] <= seat[1]);
      const isKnown = at >= 0 && taken[at][1] === seat[1] && taken[at][2] === seat[2];
      if (!isKnown) taken.splice(at + 1, 0, seat);
      if (taken.length > SEATS_PER_SLOT) taken.shift();
      slots.set(seat[0], taken);
    }
  }

  #forget() {
    if (this.entries.length <= this.kept + 50) return; // in portions, since a shift is not free
    const gone = this.entries.splice(0, this.entries.length - this.kept);
    this.droppedEntries += gone.length;
    const columns = gone[gone.length - 1].end - this.dropped;
    this.columns.splice(0, columns);
    this.dropped += columns;
    const runs = new Set(this.entries.map((one) => one.run));
    for (const run of this.seats.keys()) if (!runs.has(run)) this.seats.delete(run);
  }

  /** The sequence in a slot at a step. @param {string} run @param {number} slot @param {number} step
   * @returns {Seat | null} */
  seatAt(run, slot, step) {
    const taken = this.seats.get(run)?.get(slot);
    return taken?.findLast((one) => one[1] <= step) ?? null;
  }

  /** Does a request have several sequences in a step? @param {Column} column */
  hasFamilies({ run, record }) {
    for (const [slot, taken] of this.seats.get(run) ?? []) {
      const seat = taken.findLast((one) => one[1] <= record.step);
      if (seat && seat[3] >= 0 && (record.cells[slot] ?? ".") !== ".") return true;
    }
    return false;
  }

  /** The last columns up to an entry, oldest first. @param {Entry} entry @param {number} most
   * @returns {Column[]} */
  columnsUntil(entry, most) {
    const end = entry.end - this.dropped;
    return this.columns.slice(Math.max(end - most, 0), end);
  }

  /** The entry that a window of `seconds` before another one begins with; null if there is none
   * in the same spell. @param {number} at @param {number} seconds */
  windowStart(at, seconds) {
    const { spell, frame } = this.entries[at];
    let first = null;
    for (let i = at - 1; i >= 0; i--) {
      const one = this.entries[i];
      if (one.spell !== spell) break;
      first = one;
      if (frame.time - one.frame.time >= seconds) break;
    }
    return first;
  }

  /** Tokens per second just before an entry. @param {number} at */
  tokensPerS(at) {
    return rateOf(this.entries[at].frame, this.windowStart(at, RATE_S)?.frame);
  }

  /** The entry that shows a time, or the closest one. @param {number} time */
  at(time) {
    const after = this.entries.findIndex((one) => one.frame.time >= time);
    return after < 0 ? this.entries.length - 1 : after;
  }
}
