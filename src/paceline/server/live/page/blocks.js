// Draws a pool of blocks as a map, a square for each block or for several.

import { cleared, hideTip, tip } from "./canvas.js";
import { byId, fillList, make, setAttribute, setText } from "./dom.js";
import { BLOCKS } from "./messages.js";
import { colour } from "./theme.js";
import { ratio } from "./figures.js";
import { count, percent } from "./words.js";

const SIDES = [14, 12, 10, 9, 8, 7, 6, 5, 4, 3, 2];
const KINDS = /** @type {const} */ (["held", "shared", "cached", "free"]);

export class BlockMap {
  /** @param {string} canvas @param {string} legend @param {string} note @param {number} mostHeight */
  constructor(canvas, legend, note, mostHeight) {
    this.canvas = byId(canvas);
    this.legend = byId(legend);
    this.note = byId(note);
    this.reading = make("p", "note reading");
    this.legend.after(this.reading);
    this.mostHeight = mostHeight;
    this.side = 1;
    this.across = 1;
    /** @type {import("./messages.js").BlockCells | null} */ this.blocks = null;
    this.canvas.addEventListener("mousemove", (/** @type {MouseEvent} */ event) =>
      this.#hover(event),
    );
    this.canvas.addEventListener("mouseleave", hideTip);
  }

  /** @param {import("./messages.js").BlockCells} blocks @param {number} blockSize @param {number} [usage] */
  draw(blocks, blockSize, usage) {
    this.blocks = blocks;
    const { cells } = blocks;
    const width = this.canvas.clientWidth;
    const down = (/** @type {number} */ side) =>
      Math.ceil(cells.length / Math.max(Math.floor(width / side), 1));
    this.side = SIDES.find((side) => down(side) * side <= this.mostHeight) ?? 1;
    this.across = Math.max(Math.floor(width / this.side), 1);
    const { context } = cleared(this.canvas, Math.max(down(this.side) * this.side, this.side));
    const gap = this.side >= 4 ? 1 : 0;
    for (const [code, { name }] of Object.entries(BLOCKS)) {
      context.fillStyle = colour(`block-${name}`);
      for (let i = cells.indexOf(code); i >= 0; i = cells.indexOf(code, i + 1)) {
        const x = (i % this.across) * this.side;
        const y = Math.floor(i / this.across) * this.side;
        context.fillRect(x, y, this.side - gap, this.side - gap);
      }
    }
    this.#describe(blocks, blockSize, usage);
  }

  /** @param {import("./messages.js").BlockCells} blocks @param {number} blockSize
   * @param {number} [usage] */
  #describe(blocks, blockSize, usage) {
    const held = usage === undefined ? "" : ` · ${percent(usage)} held`;
    setText(this.note, `${count(blocks.size)} blocks of ${blockSize} tokens${held}`);
    const each = blocks.per_cell > 1 ? [`${count(blocks.per_cell)} in a square`] : [];
    const age = blocks.age > 1.5 ? [`read within ${blocks.age.toFixed(0)} s`] : [];
    setText(this.reading, [...each, ...age].join(", "));
    fillList(this.legend, [...KINDS], legendItem, (item, kind) => {
      setAttribute(item.firstElementChild, "class", `swatch block-${kind}`);
      setText(item.children[1], kind);
      setText(item.children[2], count(blocks[kind]));
    });
    const words = KINDS.map((kind) => `${kind} ${percent(ratio(blocks[kind], blocks.size))}`);
    setAttribute(this.canvas, "aria-label", `${count(blocks.size)} blocks: ${words.join(", ")}`);
  }

  /** @param {MouseEvent} event */
  #hover(event) {
    if (!this.blocks) return;
    const column = Math.floor(event.offsetX / this.side);
    const at = column + Math.floor(event.offsetY / this.side) * this.across;
    const code = this.blocks.cells[at];
    if (column >= this.across || code === undefined) return hideTip();
    const each = this.blocks.per_cell;
    const { words } = BLOCKS[/** @type {keyof BLOCKS} */ (code)];
    const last = Math.min((at + 1) * each, this.blocks.size) - 1;
    if (each === 1) return tip(event, [`Block ${count(at)}: ${words}`]);
    tip(event, [`Blocks ${count(at * each)} to ${count(last)}`, `mostly ${words}`]);
  }
}

const legendItem = () => make("li", "", make("i", "swatch"), make("span"), make("b"));
