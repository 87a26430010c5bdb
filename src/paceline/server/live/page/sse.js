// Cuts the text of a stream into server-sent events.

/** @typedef {{event: string, data: string}} ServerEvent */

export class EventParser {
  constructor() {
    this.rest = "";
  }

  /**
   * Takes the next piece of text and returns the events that are complete.
   * @param {string} text
   * @returns {ServerEvent[]}
   */
  push(text) {
    const events = [];
    const blocks = (this.rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const event = parsed(block);
      if (event) events.push(event);
    }
    return events;
  }
}

/** @param {string} block @returns {ServerEvent | null} null: a comment that keeps the line open */
function parsed(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(colon + 1).replace(/^ /, "");
    const field = line.slice(0, colon);
    if (field === "event") event = value;
    if (field === "data") data.push(value);
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
