// Small steps on the document, each of which changes nothing that is right already.

/** @param {string} id @returns {any} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`index.html has no element ${id}`);
  return found;
}

/** @param {string} tag @param {string} [className] @param {...(Node | string)} children */
export function make(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** @param {Element} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {HTMLElement} node @param {boolean} isShown */
export function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

/** @param {Element} node @param {string} name @param {string} value */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/**
 * Gives a list as many children as there are items and fills them. Children stay, so that the
 * focus and a selection stay where they are while the list changes.
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {() => Element} makeChild
 * @param {(child: any, item: T) => void} fill
 */
export function fillList(parent, items, makeChild, fill) {
  while (parent.children.length > items.length) parent.lastElementChild?.remove();
  while (parent.children.length < items.length) parent.append(makeChild());
  items.forEach((item, i) => fill(parent.children[i], item));
}

/** A row whose second cell is a button that opens a request.
 * @param {string[]} classes of its cells @param {(id: string) => void} open */
export function requestRow(classes, open) {
  const row = make("tr", "", ...classes.map((name) => make("td", name)));
  const button = /** @type {HTMLButtonElement} */ (make("button", "link id"));
  button.type = "button";
  button.addEventListener("click", () => open(button.dataset.id ?? ""));
  row.children[1].append(button);
  return row;
}

/** @param {Element} row @param {string} id @param {number} [most] characters */
export function setRequest(row, id, most) {
  const button = /** @type {HTMLElement} */ (row.children[1].firstElementChild);
  if (button.dataset.id === id) return;
  button.dataset.id = id;
  button.title = id;
  button.textContent = shortId(id, most);
}

/** The end of a long id, which differs from those of others. @param {string} id */
export function shortId(id, most = 18) {
  return id.length <= most ? id : `…${id.slice(1 - most)}`;
}

const said = /** @type {HTMLElement} */ (document.getElementById("said"));

/** Lets a screen reader say something. @param {string} words */
export function say(words) {
  said.textContent = words;
}
