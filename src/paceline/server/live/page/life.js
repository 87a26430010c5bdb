// The life of one request: facts, a timeline, and what happened in sentences.

import { hideTip } from "./canvas.js";
import { byId, fillList, make, setAttribute, setText, show } from "./dom.js";
import { Refused, requestLife } from "./server.js";
import { count, duration, percent, plural, stateWords } from "./words.js";

/** @typedef {import("./messages.js").RequestLife} RequestLife */

const REFRESH_S = 1;
const PHASES = ["waiting", "parked", "prefill", "decode", "again", "preempted", "swapped"];

/** @param {string} phase */
const classOf = (phase) => `phase-${PHASES.find((name) => phase.includes(name)) ?? "waiting"}`;

export class LifeView {
  /** @param {(time: number, engine: number) => void} seek @param {() => void} changed */
  constructor(seek, changed) {
    this.panel = byId("life");
    this.seek = seek;
    this.changed = changed;
    this.id = "";
    /** @type {RequestLife | null} */ this.life = null;
    /** @type {number | null} */ this.shown = null; // the time that the page shows
    /** @type {HTMLElement | null} */ this.opener = null;
    this.timer = 0;
    byId("life-close").addEventListener("click", () => this.close());
  }

  get isOpen() {
    return this.id !== "";
  }

  /** @param {string} id */
  open(id) {
    if (!this.isOpen) this.opener = /** @type {HTMLElement | null} */ (document.activeElement);
    this.id = id;
    this.life = null;
    setText(byId("life-title"), id);
    setText(byId("life-state"), "");
    show(byId("life-trouble"), false);
    show(byId("life-body"), false);
    show(this.panel, true);
    hideTip();
    this.panel.focus({ preventScroll: true });
    this.#refresh();
    this.changed();
  }

  close() {
    if (!this.isOpen) return;
    clearTimeout(this.timer);
    this.id = "";
    show(this.panel, false);
    this.opener?.focus({ preventScroll: true });
    this.changed();
  }

  async #refresh() {
    clearTimeout(this.timer);
    const { id } = this;
    try {
      const life = await requestLife(id);
      if (id !== this.id) return;
      this.life = life;
      show(byId("life-trouble"), false);
      this.#draw(life);
      if (life.state.startsWith("FINISHED")) return;
    } catch (error) {
      if (id !== this.id) return;
      setText(byId("life-trouble"), troubleOf(error, this.life !== null));
      show(byId("life-trouble"), true);
      if (error instanceof Refused && error.status === 404) return;
    }
    this.timer = setTimeout(() => this.#refresh(), REFRESH_S * 1000);
  }

  /** Marks the time that the page shows. @param {number} time */
  mark(time) {
    this.shown = time;
    const mark = this.panel.querySelector(".now");
    if (!mark || !this.life) return;
    const share = (time - this.life.arrival) / span(this.life);
    show(mark, share >= 0 && share <= 1);
    mark.style.left = `${share * 100}%`;
  }

  /** @param {RequestLife} life */
  #draw(life) {
    setText(byId("life-state"), stateWords(life.state));
    show(byId("life-body"), true);
    this.#facts(life);
    this.#track(life);
    this.#phases(life);
    this.#sentences(life);
    show(byId("life-prompt"), life.text !== null);
    if (life.text !== null) setText(byId("life-text"), life.text);
    if (this.shown !== null) this.mark(this.shown);
  }

  /** @param {RequestLife} life */
  #facts(life) {
    const first = life.moments.find((one) => one.happened === "first token");
    /** @type {[string, string][]} */
    const facts = [
      ["Prompt", plural(life.prompt, "token")],
      ["Generated", `${count(life.known - life.prompt)} of ${count(life.limit - life.prompt)}`],
      [
        "Cached",
        life.cached ? `${count(life.cached)} (${percent(life.cached / life.prompt)})` : "0",
      ],
      ["Computed", count(life.computed)],
      ["First token", first ? duration(first.time - life.arrival) : "–"],
      ["Age", duration(endOf(life) - life.arrival)],
      ["Preemptions", count(life.preemptions)],
      ["Tenant", life.tenant || "–"],
    ];
    if (life.priority !== 0) facts.push(["Priority", String(life.priority)]);
    fillList(
      byId("life-facts"),
      facts,
      () => make("div", "", make("dt"), make("dd")),
      (item, [name, value]) => {
        setText(item.children[0], name);
        setText(item.children[1], value);
      },
    );
  }

  /** @param {RequestLife} life */
  #track(life) {
    const all = span(life);
    const place = (/** @type {number} */ time) => `${((time - life.arrival) / all) * 100}%`;
    const parts = life.phases.map((phase) => {
      const part = make("i", classOf(phase.phase));
      const end = phase.end ?? life.now;
      part.style.left = place(phase.begin);
      part.style.width = `max(1px, ${((end - phase.begin) / all) * 100}%)`;
      part.title = `${phase.phase}: ${duration(end - phase.begin)}`;
      return part;
    });
    const now = make("b", "now");
    now.hidden = true;
    byId("life-track").replaceChildren(...parts, now);
    const words = life.phases.map(
      (one) => `${one.phase} ${duration((one.end ?? life.now) - one.begin)}`,
    );
    setAttribute(byId("life-track"), "aria-label", words.join(", then "));
    const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => make("span", "", duration(all * share)));
    byId("life-axis").replaceChildren(...marks);
  }

  /** @param {RequestLife} life */
  #phases(life) {
    const makeRow = () => {
      const button = /** @type {HTMLButtonElement} */ (
        make("button", "link", make("i", "swatch"), make("span"))
      );
      button.type = "button";
      button.title = "Show this moment";
      button.addEventListener("click", () =>
        this.seek(Number(button.dataset.time), Number(button.dataset.engine)),
      );
      return make(
        "tr",
        "",
        make("td", "", button, make("p", "note")),
        make("td", "number"),
        make("td", "number"),
        make("td", "number"),
      );
    };
    fillList(byId("life-phases").tBodies[0], life.phases, makeRow, (row, phase) => {
      const button = row.querySelector("button");
      button.dataset.time = String(phase.begin);
      button.dataset.engine = String(life.engine);
      setAttribute(button.firstElementChild, "class", `swatch ${classOf(phase.phase)}`);
      setText(button.lastElementChild, phase.phase);
      setText(row.children[1], duration(phase.begin - life.arrival));
      setText(
        row.children[2],
        duration((phase.end ?? life.now) - phase.begin) + (phase.end === null ? " …" : ""),
      );
      setText(row.children[3], phase.step > 0 ? count(phase.step) : "");
      setText(row.children[0].lastElementChild, phase.cause);
    });
  }

  /** The lines of `explain`; most begin with a time. @param {RequestLife} life */
  #sentences(life) {
    const makeItem = () => make("li", "", make("time"), make("span"));
    fillList(byId("life-sentences"), life.sentences, makeItem, (item, line) => {
      const [, time, words] = line.match(/^\s+([\d.,]+ m?s): (.*)$/) ?? [null, "", line.trim()];
      setAttribute(item, "class", line.startsWith(" ") ? "" : "whole");
      setText(item.firstElementChild, time ?? "");
      setText(item.lastElementChild, words ?? "");
    });
  }
}

/** @param {unknown} error @param {boolean} wasShown */
function troubleOf(error, wasShown) {
  if (error instanceof Refused && error.status === 404 && wasShown)
    return "The server does not remember this request any more.";
  if (error instanceof Refused) return error.message;
  return "The server does not answer; trying again.";
}

/** @param {RequestLife} life */
function endOf(life) {
  const last = life.phases.at(-1);
  return last?.end ?? life.now;
}

/** @param {RequestLife} life */
const span = (life) => Math.max(endOf(life) - life.arrival, 1e-6);
