// The theme, and its colours for what is drawn on canvases.

import { byId } from "./dom.js";

const KEY = "paceline-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const button = byId("theme");
const probe = document.createElement("i");
/** @type {Map<string, string>} */
let known = new Map();
/** @type {(() => void)[]} */
const listeners = [];

/** A colour of theme.css as the browser computes it: `rgb(…)`. @param {string} name */
export function colour(name) {
  let value = known.get(name);
  if (value === undefined) {
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    value = getComputedStyle(probe).color;
    probe.remove();
    known.set(name, value);
  }
  return value;
}

/** A colour as red, green and blue. @param {string} name */
export const channels = (name) => (colour(name).match(/\d+/g) ?? []).slice(0, 3).map(Number);

/** @param {() => void} listener */
export const onThemeChange = (listener) => listeners.push(listener);

const isDark = () =>
  (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";

function changed() {
  known = new Map();
  button.setAttribute("aria-label", `Change to the ${isDark() ? "light" : "dark"} theme`);
  for (const listener of listeners) listener();
}

export function toggleTheme() {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  localStorage.setItem(KEY, chosen);
  changed();
}

const stored = localStorage.getItem(KEY);
if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
button.addEventListener("click", toggleTheme);
dark.addEventListener("change", changed);
changed();
