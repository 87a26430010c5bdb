// Decides which frame is shown: the newest, one that is played, or one that stands still.

/** @typedef {import("./history.js").History} History */

export class Player {
  /** @param {() => void} changed */
  constructor(changed) {
    this.changed = changed;
    this.isFollowing = true;
    this.isPlaying = false; // behind the newest frame, at the speed of the clock
    this.number = 0; // of the entry, counted since the first that was ever kept
    this.lastTick = 0;
    this.clock = 0; // the time of the engine that is played
  }

  get isMoving() {
    return this.isFollowing || this.isPlaying;
  }

  /** The entry to show. @param {History} history */
  index(history) {
    const last = history.entries.length - 1;
    if (this.isFollowing) return last;
    return Math.min(Math.max(this.number - history.droppedEntries, 0), last);
  }

  /** @param {History} history @param {number} index */
  goTo(history, index) {
    const last = history.entries.length - 1;
    const at = Math.min(Math.max(index, 0), last);
    this.number = at + history.droppedEntries;
    this.isFollowing = false;
    if (history.entries[at]) this.clock = history.entries[at].frame.time;
    this.changed();
  }

  follow() {
    this.isFollowing = true;
    this.isPlaying = false;
    this.changed();
  }

  /** Stands still, or goes on from where it stands. @param {History} history */
  toggle(history) {
    if (this.isMoving) {
      this.goTo(history, this.index(history));
      this.isPlaying = false;
    } else {
      const at = this.index(history);
      this.isPlaying = true;
      this.lastTick = performance.now();
      this.clock = history.entries[at].frame.time;
      if (at === history.entries.length - 1) this.follow();
    }
    this.changed();
  }

  /** Plays on. @param {History} history @param {boolean} isLive whether frames still come */
  tick(history, isLive) {
    if (!this.isPlaying) return;
    const now = performance.now();
    this.clock += (now - this.lastTick) / 1000;
    this.lastTick = now;
    let at = this.index(history);
    const { entries } = history;
    while (at + 1 < entries.length && entries[at + 1].frame.time <= this.clock) at += 1;
    const isAtEnd = at === entries.length - 1;
    const next = entries[at + 1];
    // A new run has a clock of its own, or stood still for a while.
    const isNewRun = next && next.run !== entries[at].run;
    if (isNewRun) at += 1;
    if (at !== this.index(history)) {
      const { clock } = this;
      this.goTo(history, at);
      if (!isNewRun) this.clock = clock; // what is left of this tick is not lost
    }
    if (isAtEnd) {
      this.isPlaying = false;
      if (isLive) this.follow();
      this.changed();
    }
  }
}
