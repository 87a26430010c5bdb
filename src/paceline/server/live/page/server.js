// Talks to the server: the stream of frames, the lives of requests, the key.

import { EventParser } from "./sse.js";

const HERE = new URL(".", import.meta.url);
const KEY = "paceline-api-key";
const PAUSES_S = [0.5, 1, 2, 4, 8, 15]; // before each further attempt to connect
const SILENCE_S = 15; // a server that sends nothing for so long does not answer any more

/**
 * What the connection does. `words` is for people.
 * @typedef {{name: "connecting" | "open" | "lost" | "key" | "ended", words: string}} Connection
 */

/** The answer of a server that is not the one that was asked for. */
export class Refused extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  /** @param {string} key */
  set: (key) => sessionStorage.setItem(KEY, key),
};

/** @param {string} path @param {AbortSignal} [signal] */
async function ask(path, signal) {
  const key = apiKey.get();
  const headers = key ? { Authorization: `Bearer ${asBytes(key)}` } : undefined;
  const response = await fetch(new URL(path, HERE), { headers, signal, cache: "no-store" });
  if (!response.ok) throw new Refused(response.status, await reason(response));
  return response;
}

/** A key in UTF-8, one character per byte: a header has no others. @param {string} key */
const asBytes = (key) => String.fromCharCode(...new TextEncoder().encode(key));

/** @param {Response} response */
async function reason(response) {
  const body = await response.text();
  try {
    return JSON.parse(body).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

/** @param {string} id @returns {Promise<import("./messages.js").RequestLife>} */
export async function requestLife(id) {
  return (await ask(`requests/${encodeURIComponent(id)}`)).json();
}

/** The stream of events; it connects again when the connection breaks. */
export class EventSourceWithKey {
  /**
   * @param {(event: string, message: any) => void} onEvent
   * @param {(connection: Connection) => void} onConnection
   */
  constructor(onEvent, onConnection) {
    this.onEvent = onEvent;
    this.onConnection = onConnection;
    this.failures = 0;
    this.isRecording = false;
    this.wake = () => {};
  }

  /** Runs until the server refuses for good or a recording is complete. */
  async run() {
    this.onConnection({ name: "connecting", words: "Connecting" });
    for (;;) {
      const refused = await this.#attempt();
      if (this.isRecording && !refused) {
        this.onConnection({ name: "ended", words: "Recording" });
        return;
      }
      if (refused?.status === 401) {
        this.onConnection({ name: "key", words: "This server needs an API key" });
        await new Promise((resolve) => (this.wake = () => resolve(undefined)));
        continue;
      }
      await this.#pause(refused);
    }
  }

  /** Connects at once instead of after the pause, or with a new key. */
  retry() {
    this.wake();
  }

  /** @returns {Promise<Refused | null>} */
  async #attempt() {
    const abort = new AbortController();
    let timer = 0;
    const restartTimer = () => {
      clearTimeout(timer);
      if (!this.isRecording) timer = setTimeout(() => abort.abort(), SILENCE_S * 1000);
    };
    restartTimer();
    try {
      const response = await ask("events", abort.signal);
      const reader = /** @type {ReadableStream} */ (response.body).getReader();
      const decoder = new TextDecoder();
      const parser = new EventParser();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return null;
        restartTimer();
        for (const one of parser.push(decoder.decode(value, { stream: true }))) this.#pass(one);
      }
    } catch (error) {
      return error instanceof Refused ? error : null;
    } finally {
      clearTimeout(timer);
    }
  }

  /** @param {import("./sse.js").ServerEvent} one */
  #pass(one) {
    const message = JSON.parse(one.data);
    if (one.event === "start") {
      this.isRecording = message.recording !== "";
      this.failures = 0;
    }
    this.onEvent(one.event, message);
    if (one.event === "start")
      this.onConnection({ name: "open", words: this.isRecording ? "Recording" : "Live" });
  }

  /** @param {Refused | null} refused */
  async #pause(refused) {
    const seconds = PAUSES_S[Math.min(this.failures, PAUSES_S.length - 1)];
    this.failures += 1;
    const trouble = refused
      ? `The server refuses: ${refused.message}`
      : "The server stopped answering";
    const woken = new Promise((resolve) => (this.wake = () => resolve(true)));
    for (let left = seconds; left > 0; left -= 1) {
      const words = `${trouble}; trying again in ${Math.ceil(left)} s`;
      this.onConnection({ name: "lost", words });
      const slept = new Promise((resolve) => setTimeout(resolve, Math.min(left, 1) * 1000));
      if ((await Promise.race([woken, slept])) === true) break;
    }
    this.onConnection({ name: "lost", words: `${trouble}; trying again` });
  }
}
