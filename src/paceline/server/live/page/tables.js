// The panels that are tables: figures, running requests, parts of a step, tenants.

import {
  byId,
  fillList,
  make,
  requestRow,
  setAttribute,
  setRequest,
  setText,
  show,
} from "./dom.js";
import { quantileOf } from "./histogram.js";
import { CELLS, PARTS, PART_WORDS } from "./messages.js";
import { slotsInUse, takenSlots } from "./slots.js";
import { count, duration, percent, plural, short } from "./words.js";

/** @typedef {import("./main.js").Scene} Scene */

const MOST_ROWS = 256;

/** The figures at the top. @param {Scene} scene */
export function drawTiles({ history, index, entry, figures }) {
  const { counts, slots, usage, totals } = entry.frame;
  const latest = history.columnsUntil(entry, 1)[0];
  const isSeveral = latest && history.hasFamilies(latest);
  const among = isSeveral ? `in ${count(slotsInUse(history, entry))} slots` : `of ${count(slots)}`;
  const swapped = counts.swapped ? [`${count(counts.swapped)} on the host`] : [];
  const parked = counts.parked ? [`+ ${count(counts.parked)} parked`] : [];
  /** @type {[string, string, string][]} */
  const tiles = [
    ["Generated", short(history.tokensPerS(index)), "tokens/s"],
    ["Running", count(counts.running), among],
    ["Waiting", count(counts.waiting), [...swapped, ...parked].join(" ")],
    ["Blocks held", ...unitOf(percent(usage))],
    ["Prefix hits", ...unitOf(percent(figures.hitRate))],
    ["TTFT, p50", ...unitOf(quantileOf(figures.firstToken, 0.5))],
    ["ITL, p50", ...unitOf(quantileOf(figures.between, 0.5))],
    ["Step, mean", ...unitOf(duration(figures.stepTime))],
    ["Preemptions", count(figures.preemptions), `${count(totals.preemptions)} in all`],
  ];
  if (totals.attained + totals.missed)
    tiles.push(["Goodput", short(figures.goodput), `requests/s, ${percent(figures.attained)}`]);
  if (totals.drafted) tiles.push(["Drafts accepted", ...unitOf(percent(figures.acceptance))]);
  const makeTile = () => make("div", "", make("dt"), make("dd", "", make("span"), make("small")));
  fillList(byId("tiles"), tiles, makeTile, (tile, [name, value, unit]) => {
    setText(tile.firstElementChild, name);
    setText(tile.lastElementChild.firstElementChild, value);
    setText(tile.lastElementChild.lastElementChild, unit);
  });
}

/** `12 ms` as figure and unit. @param {string} words @returns {[string, string]} */
function unitOf(words) {
  const cut = words.lastIndexOf(" ");
  return cut < 0 ? [words, ""] : [words.slice(0, cut), words.slice(cut + 1)];
}

export class RunningTable {
  /** @param {(id: string) => void} open */
  constructor(open) {
    this.place = byId("slots-table");
    this.body = this.place.querySelector("tbody");
    this.makeRow = () => requestRow(["number", "", "", "number"], open);
  }

  /** @param {Scene} scene */
  draw({ history, entry }) {
    const latest = history.columnsUntil(entry, 1).at(-1);
    const isIdle = !latest || takenSlots(latest, entry) === 0;
    const taken = isIdle ? [] : [...latest.record.cells].map((code, slot) => ({ code, slot }));
    const running = taken.filter(({ code }) => code !== "." && code !== "x");
    fillList(this.body, running.slice(0, MOST_ROWS), this.makeRow, (row, { code, slot }) => {
      const { run, record } = /** @type {import("./history.js").Column} */ (latest);
      const seat = history.seatAt(run, slot, record.step);
      setText(row.children[0], String(slot));
      setRequest(row, seat?.[2] ?? "");
      setText(row.children[2], CELLS[/** @type {keyof CELLS} */ (code)].words);
      setText(row.children[3], seat ? count(seat[4]) : "");
    });
  }
}

/** Where the time of a step goes. @param {Scene} scene */
export function drawSplit({ figures }) {
  const { split, stepTime, steps } = figures;
  setText(
    byId("split-note"),
    stepTime === null ? "no steps" : `${duration(stepTime)}, mean of ${plural(steps, "step")}`,
  );
  const makeRow = () =>
    make(
      "tr",
      "",
      make("td"),
      make("td", "wide", make("div", "meter", make("i"))),
      make("td", "number"),
      make("td", "number"),
    );
  fillList(byId("split").tBodies[0], [...PARTS], makeRow, (row, part) => {
    const share = stepTime ? split[part] / stepTime : 0;
    setText(row.children[0], part);
    setAttribute(row.children[0], "title", PART_WORDS[part]);
    const bar = row.querySelector("i");
    setAttribute(bar, "class", `part-${part}`);
    bar.style.width = `${share * 100}%`;
    setText(row.children[2], duration(split[part]));
    setText(row.children[3], percent(share));
  });
}

/** What tenants got, under a policy that shares by tenant. @param {Scene} scene */
export function drawTenants({ entry }) {
  const { tenants, fair_share: fair, policy } = entry.frame;
  show(byId("tenants-panel"), tenants.length > 0);
  byId("split")
    .closest("section")
    .classList.toggle("alone", tenants.length === 0);
  setText(byId("tenants-note"), `under ${policy}; those served least first`);
  const most = Math.max(fair, ...tenants.map((one) => one.served)) || 1;
  const makeRow = () =>
    make(
      "tr",
      "",
      make("td"),
      make("td", "wide", make("div", "meter", make("i"), make("b"))),
      make("td", "number"),
      make("td", "number"),
      make("td", "number"),
    );
  fillList(byId("tenants").tBodies[0], tenants, makeRow, (row, one) => {
    const share = fair > 0 ? ` (${percent(one.served / fair)})` : "";
    setText(row.children[0], one.tenant || "(none)");
    row.querySelector("i").style.width = `${(one.served / most) * 100}%`;
    row.querySelector("b").style.left = `${(fair / most) * 100}%`;
    setAttribute(row.children[1], "title", `${short(one.served)} weighted tokens${share}`);
    setAttribute(row.querySelector(".meter"), "role", "img");
    setAttribute(
      row.querySelector(".meter"),
      "aria-label",
      `${short(one.served)} weighted tokens${share}`,
    );
    setText(row.children[2], String(one.weight));
    setText(row.children[3], count(one.running));
    setText(row.children[4], count(one.waiting));
  });
}

/** The colours and their meanings. */
export function drawLegends() {
  for (const { name, words } of Object.values(CELLS)) {
    if (name === "vacant") continue;
    byId("cell-legend").append(
      make("li", "", make("i", `swatch cell-${name}`), LEGEND[name] ?? words),
    );
  }
  for (const part of PARTS)
    byId("part-legend").append(make("li", "", make("i", `swatch part-${part}`), part));
}

/** @type {Record<string, string>} */
const LEGEND = { idle: "idle", drafts: "drafts", cached: "prefix hit", again: "again" };
