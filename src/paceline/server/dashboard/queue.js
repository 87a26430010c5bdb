// The requests that wait, in the order of admission, each with its reason.

import { byId, fillList, requestRow, setRequest, setText, show } from "./dom.js";
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
    const head = queue.first.find((one) => one.place === 1);
    show(byId("queue-reason"), head !== undefined && head.reason !== "");
    if (head) setText(byId("queue-reason"), `The first one ${because(head.reason)}.`);
    setText(byId("queue-note"), noteOf(queue, counts, policy));
    show(byId("queue-empty"), queue.total === 0);
    show(byId("queue"), queue.total > 0);
    fillList(this.body, queue.first, this.makeRow, (row, one) => {
      setText(row.children[0], one.place > 0 ? count(one.place) : "–");
      setRequest(row, one.request_id, 12);
      setText(row.children[2], count(one.prompt));
      setText(row.children[3], duration(one.waited));
      setText(row.children[4], why(one, head));
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

/** A reason that follows the name of a request. @param {string} reason */
const because = (reason) =>
  /^(for|in|while|behind) /.test(reason) ? `waits ${reason}` : `is ${reason}`;

/** The reason in a few words; the whole one of the first request stands above the table.
 * @param {import("./messages.js").QueuedRequest} one
 * @param {import("./messages.js").QueuedRequest | undefined} head */
function why(one, head) {
  const marks = [];
  if (one.state !== "WAITING") marks.push(stateWords(one.state));
  if (one.priority !== 0) marks.push(`priority ${one.priority}`);
  if (one.tenant) marks.push(one.tenant);
  const isBehind = head && one !== head && one.reason.startsWith(`behind '${head.request_id}'`);
  const reason = one === head ? "next" : isBehind ? "behind #1" : one.reason;
  return [reason, ...marks].filter(Boolean).join(" · ");
}
