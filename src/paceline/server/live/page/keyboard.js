// The keys of the page, and the list of them.

import { byId, make } from "./dom.js";

/** @typedef {{keys: string[], shown: string[], words: string, act: () => void}} Shortcut */

/** @param {Shortcut[]} shortcuts */
export function listen(shortcuts) {
  const help = byId("help-dialog");
  const body = byId("help-keys").tBodies[0];
  for (const { shown, words } of shortcuts) {
    const keys = shown.flatMap((key, i) =>
      i ? [" ", make("kbd", "", key)] : [make("kbd", "", key)],
    );
    body.append(make("tr", "", make("td", "", ...keys), make("td", "", words)));
  }
  byId("help").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]") || isTyping(event)) return;
    const found = shortcuts.find(({ keys }) => keys.includes(event.key));
    if (!found) return;
    event.preventDefault();
    found.act();
  });
}

/** Does the focused element use the key itself? @param {KeyboardEvent} event */
function isTyping({ target, key }) {
  if (!(target instanceof HTMLElement)) return false;
  if (key === "Escape") return false;
  if (target.matches("input:not([type=range]), select, textarea")) return true;
  return target.matches("button, a, summary") && (key === " " || key === "Enter");
}
