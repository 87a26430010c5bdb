// The requests that wait, in the order of admission, each with its reason.

import { byId, fillList, requestRow, setRequest, setText, shortId, show } from "./dom.js";
import { count, duration, stateWords } from "./words.js";

const CLASSES = ["number", "", "number", "number", ""];

export class QueueTable {
  /** @param {(id: string) => void} open */
  constructor(open) {
    this.body = byId("queue").tBodies[0];
    this.makeRow = () => requestRow(CLASSES, open);
  }

  /** @param {import("./messages.js").Frame} frame */
  draw({ queue, counts, policy }) {
    const head = queue.first.find((one) => one.place === 1 && one.reason && one.reason !== NEW);
    show(byId("queue-reason"), head !== undefined);
    if (head) setText(byId("queue-reason"), gateWords(head, queue.first));
    setText(byId("queue-note"), noteOf(queue, counts, policy));
    show(byId("queue-empty"), queue.total === 0);
    show(byId("queue-list"), queue.total > 0);
    fillList(this.body, queue.first, this.makeRow, (row, one) => {
      setText(row.children[0], one.place > 0 ? count(one.place) : "–");
      setRequest(row, one.request_id, 12);
      setText(row.children[2], count(one.prompt));
      setText(row.children[3], duration(one.waited));
      setText(row.children[4], why(one, queue.first));
    });
  }
}

/** @param {import("./messages.js").QueueHead} queue
 * @param {import("./messages.js").RequestCounts} counts @param {string} policy */
function noteOf({ first, total }, counts, policy) {
  if (total === 0) return `by ${policy}`;
  const shown = first.length < total ? `, the first ${count(first.length)} shown` : "";
  const parked = counts.parked ? `, ${count(counts.parked)} parked` : "";
  return `${count(total)} by ${policy}${shown}${parked}`;
}

const NEW = "not considered yet"; // it came after the latest step
const BEHIND = /^behind '(.+?)', which (waits .*)$/;

/** What keeps the queue from moving: ranks may have changed since, so that the request that stopped
 * it need not be the first one. @param {import("./messages.js").QueuedRequest} head
 * @param {import("./messages.js").QueuedRequest[]} first */
function gateWords({ reason }, first) {
  const [, other, waits] = reason.match(BEHIND) ?? [];
  const place = first.find((one) => one.request_id === other)?.place;
  if (waits) return `${place ? `Number ${place}` : `Request ${shortId(other)}`} ${waits}.`;
  const verb = /^(for|in|while) /.test(reason) ? "waits" : "is";
  return `The first one ${verb} ${reason}.`;
}

/** The reason in a few words; that of the request that stops the queue stands above the table.
 * @param {import("./messages.js").QueuedRequest} one
 * @param {import("./messages.js").QueuedRequest[]} first */
function why(one, first) {
  const marks = [];
  if (one.state !== "WAITING") marks.push(stateWords(one.state));
  if (one.priority !== 0) marks.push(`priority ${one.priority}`);
  if (one.tenant) marks.push(one.tenant);
  const other = one.reason.match(BEHIND)?.[1];
  const place = first.find((each) => each.request_id === other)?.place;
  const behind = place ? `behind #${place}` : "behind another";
  const own = one.reason === NEW ? "new" : one.reason;
  const reason = one.place === 1 ? "next" : other ? behind : own;
  return [reason, ...marks].filter(Boolean).join(" · ");
}
