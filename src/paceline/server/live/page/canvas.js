// Canvases with sharp pixels, and the box that follows the mouse.

import { byId } from "./dom.js";

/**
 * Gives a canvas the pixels of its place on the screen, and clears it. One unit is a CSS pixel.
 * @param {HTMLCanvasElement} canvas
 * @param {number} [height] CSS pixels; otherwise what the style says
 */
export function cleared(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  if (height !== undefined && canvas.style.height !== `${height}px`)
    canvas.style.height = `${height}px`;
  const width = canvas.clientWidth;
  const tall = height ?? canvas.clientHeight;
  const [across, down] = [Math.round(width * ratio), Math.round(tall * ratio)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, tall);
  context.imageSmoothingEnabled = false;
  return { context, width, height: tall, ratio };
}

/** The font of labels. @param {number} size */
export const font = (size = 11) => `${size}px ${getComputedStyle(document.body).fontFamily}`;
export const mono = (size = 11) =>
  `${size}px ui-monospace, "SF Mono", "Cascadia Mono", Menlo, monospace`;

const box = byId("tip");

/** Shows the box beside the mouse. The first line is its title.
 * @param {MouseEvent | {clientX: number, clientY: number}} at @param {string[]} lines */
export function tip(at, lines) {
  const title = document.createElement("b");
  title.textContent = lines[0];
  box.replaceChildren(
    title,
    lines
      .slice(1)
      .map((line) => `\n${line}`)
      .join(""),
  );
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const isRight = at.clientX + 16 + width > innerWidth;
  const left = isRight ? at.clientX - width - 14 : at.clientX + 16;
  const top = Math.min(at.clientY + 16, innerHeight - height - 8);
  box.style.left = `${Math.max(left, 8)}px`;
  box.style.top = `${Math.max(top, 8)}px`;
}

export function hideTip() {
  box.hidden = true;
}

/** Calls back when the size of an element changes. @param {Element} element @param {() => void} redraw */
export function onResize(element, redraw) {
  let width = 0;
  new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    redraw();
  }).observe(element);
}
