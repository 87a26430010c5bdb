// Puts the page together: messages in, pictures out.

import { BlockMap } from "./blocks.js";
import { onResize } from "./canvas.js";
import { Charts } from "./charts.js";
import { byId, say, setAttribute, setText, show } from "./dom.js";
import { figuresOf } from "./figures.js";
import { Histogram } from "./histogram.js";
import { History } from "./history.js";
import { listen } from "./keyboard.js";
import { LifeView } from "./life.js";
import { Player } from "./player.js";
import { QueueTable } from "./queue.js";
import { Scrubber } from "./scrubber.js";
import { EventSourceWithKey, apiKey } from "./server.js";
import { SlotsPicture } from "./slots.js";
import { StepBars } from "./steps.js";
import { RunningTable, drawLegends, drawSplit, drawTenants, drawTiles } from "./tables.js";
import { onThemeChange, toggleTheme } from "./theme.js";
import { count, duration, period, percent, plural, short } from "./words.js";

/**
 * All that a picture may show.
 * @typedef {{history: History, index: number, entry: import("./history.js").Entry,
 *   start: import("./messages.js").StreamStart, figures: ReturnType<typeof figuresOf>,
 *   windowS: number, selected: string}} Scene
 */

const SILENT_S = 3; // without a frame for so long, the page says so

/** @type {Map<number, History>} */
const histories = new Map();
/** @type {Map<number, string>} engines in trouble */
const troubles = new Map();
/** @type {Map<number, number>} when the latest frame of each engine came */
const heard = new Map();
/** @type {import("./messages.js").StreamStart | null} */
let start = null;
/** @type {import("./server.js").Connection} */
let connection = { name: "connecting", words: "Connecting" };
let engine = 0;
let windowS = 60;
let isDue = false;
/** @type {Scene | null} what was drawn last */
let drawn = null;

const player = new Player(redraw);
const life = new LifeView(seek, redraw);
const slots = new SlotsPicture(
  (id) => life.open(id),
  () => requestAnimationFrame(drawSlots),
);
const steps = new StepBars(slots);
const running = new RunningTable((id) => life.open(id));
const queue = new QueueTable((id) => life.open(id));
const blocks = new BlockMap("blocks", "blocks-legend", "blocks-note", 150);
const host = new BlockMap("host-blocks", "host-legend", "host-note", 60);
const charts = new Charts((time) => seek(time, engine));
const histograms = [
  new Histogram("ttft", "Time to first token"),
  new Histogram("itl", "Time between tokens"),
];
const scrubber = new Scrubber((index) => goTo(index));
const source = new EventSourceWithKey(receive, connected);

const history = () => histories.get(engine);

/** @param {string} event @param {any} message */
function receive(event, message) {
  if (event === "start") started(message);
  if (event === "status") {
    if (message.trouble) troubles.set(message.engine, message.trouble);
    else troubles.delete(message.engine);
    const again = message.trouble || `Engine ${message.engine} answers again`;
    say(again);
  }
  if (event === "frame") {
    heard.set(message.engine, performance.now());
    histories.get(message.engine)?.add(message);
  }
  redraw();
}

/** @param {import("./messages.js").StreamStart} message */
function started(message) {
  start = message;
  troubles.clear();
  for (let i = 0; i < message.engines; i++) {
    heard.set(i, performance.now());
    if (!histories.has(i)) histories.set(i, new History());
    histories.get(i)?.keep(message.kept);
  }
  document.title = `${message.model || message.recording} · paceline`;
  setText(byId("model"), message.recording || message.model);
  show(byId("engines"), message.engines > 1);
  const options = Array.from(
    { length: message.engines },
    (_, i) => new Option(String(i), String(i)),
  );
  byId("engine").replaceChildren(...options);
  byId("engine").value = String(engine);
}

/** @param {import("./server.js").Connection} now */
function connected(now) {
  if (now.name !== connection.name) say(now.words);
  connection = now;
  if (now.name === "key") askForKey();
  const shown = history();
  if (now.name === "open" && start?.recording && shown?.entries.length === 0) player.goTo(shown, 0);
  redraw();
}

function askForKey() {
  show(byId("key-wrong"), apiKey.get() !== "");
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

function redraw() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}

function draw() {
  drawState();
  const shown = history();
  if (!start || !shown || shown.entries.length === 0) return;
  const index = player.index(shown);
  const entry = shown.entries[index];
  const before = shown.windowStart(index, windowS);
  const figures = figuresOf(entry.frame, before?.frame ?? null);
  /** @type {Scene} */
  const scene = { history: shown, index, entry, start, figures, windowS, selected: life.id };
  show(byId("hello"), false);
  show(byId("panels"), true);
  drawn = scene;
  drawTiles(scene);
  drawSlots();
  const { frame } = entry;
  queue.draw(frame);
  blocks.draw(frame.blocks, frame.block_size, frame.usage);
  show(byId("host"), frame.host.size > 0);
  if (frame.host.size > 0) host.draw(frame.host, frame.block_size);
  charts.draw(scene);
  histograms[0].draw(figures.firstToken);
  histograms[1].draw(figures.between);
  setText(byId("latency-note"), `of the last ${period(figures.seconds)}`);
  drawSplit(scene);
  drawTenants(scene);
  scrubber.draw(scene);
  life.mark(frame.time);
  show(byId("policy"), true);
  setText(byId("policy"), frame.policy);
}

/** The slots alone, which is enough while the mouse moves over them. */
function drawSlots() {
  if (!drawn) return;
  if (!running.place.hidden) return running.draw(drawn);
  slots.draw(drawn);
  steps.draw();
}

/** What the page is doing, at the top and on the buttons. */
function drawState() {
  const shown = history();
  const [name, words] = stateOf(shown);
  setAttribute(byId("state"), "data-state", name);
  setText(byId("state").lastElementChild, words);
  const lost = shown?.lost ?? 0;
  show(byId("lost"), lost > 0);
  setText(byId("lost"), `${plural(lost, "frame")} lost`);
  const engines = [...troubles].map(([number, words]) => `Engine ${number}: ${words}`);
  const trouble = connection.name === "lost" ? connection.words : engines.sort().join(" · ");
  show(byId("banner"), trouble !== "");
  setText(byId("banner"), trouble);
  show(byId("ask-key"), connection.name === "key");
  setAttribute(byId("pause"), "data-moving", String(player.isMoving));
  setAttribute(byId("pause"), "aria-label", player.isMoving ? "Pause" : "Play");
  setAttribute(byId("live"), "aria-pressed", String(player.isFollowing));
  setText(byId("live"), start?.recording ? "End" : "Live");
}

/** @param {History | undefined} shown @returns {[string, string]} */
function stateOf(shown) {
  if (connection.name === "lost") return ["lost", "Not connected"];
  if (connection.name === "key") return ["key", connection.words];
  if (connection.name === "connecting") return ["connecting", connection.words];
  if (!player.isFollowing) return player.isPlaying ? ["behind", "Playing"] : ["paused", "Paused"];
  if (start?.recording) return ["live", "End of the recording"];
  if (troubles.has(engine)) return ["lost", "No answer"];
  const last = shown?.last?.frame;
  const silent = (performance.now() - (heard.get(engine) ?? 0)) / 1000;
  // An engine whose frames take long makes them less often.
  if (silent > SILENT_S + 3 * (last ? last.time - last.since : 0))
    return ["lost", `No frame for ${duration(silent)}`];
  return ["live", last && last.counts.running + last.counts.waiting === 0 ? "Live, idle" : "Live"];
}

/** @param {number} index */
function goTo(index) {
  const shown = history();
  if (shown) player.goTo(shown, index);
}

/** @param {number} by frames */
function move(by) {
  const shown = history();
  if (shown) player.goTo(shown, player.index(shown) + by);
}

/** Shows an engine at a time. @param {number} time @param {number} which */
function seek(time, which) {
  if (which !== engine) choose(which);
  const shown = history();
  if (shown?.entries.length) player.goTo(shown, shown.at(time));
}

/** @param {number} which engine */
function choose(which) {
  engine = which;
  byId("engine").value = String(which);
  player.follow();
}

function toggle() {
  const shown = history();
  if (shown?.entries.length) player.toggle(shown);
  say(player.isMoving ? "Playing" : "Paused");
}

function toggleTable() {
  const isTable = running.place.hidden;
  show(running.place, isTable);
  show(byId("slots-picture"), !isTable);
  byId("as-table").setAttribute("aria-pressed", String(isTable));
  redraw();
}

/** All in one sentence, for those who do not see the pictures. */
function sayAll() {
  const shown = history();
  if (!shown?.entries.length) return say("No frames yet");
  const index = player.index(shown);
  const { frame } = shown.entries[index];
  const { counts } = frame;
  const gate = frame.queue.first[0]?.reason;
  const rate = `${short(shown.tokensPerS(index))} tokens per second`;
  const memory = `${percent(frame.usage)} of the blocks held`;
  const why = gate ? `; the first waits ${gate}` : "";
  say(
    `${count(counts.running)} running, ${count(counts.waiting)} waiting${why}; ${rate}; ${memory}.`,
  );
}

byId("engine").addEventListener("change", () => choose(Number(byId("engine").value)));
byId("pause").addEventListener("click", toggle);
byId("back").addEventListener("click", () => move(-1));
byId("forth").addEventListener("click", () => move(1));
byId("live").addEventListener("click", () => player.follow());
byId("wider").addEventListener("click", () => slots.widen(1));
byId("narrower").addEventListener("click", () => slots.widen(-1));
byId("as-table").addEventListener("click", toggleTable);
byId("find").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  const id = byId("find-id").value.trim();
  if (id) life.open(id);
});
byId("ask-key").addEventListener("click", askForKey);
byId("key-form").addEventListener("submit", () => {
  apiKey.set(byId("key").value);
  byId("key").value = "";
  source.retry();
});
for (const button of byId("window").children)
  button.addEventListener("click", () => {
    windowS = Number(button.dataset.seconds);
    for (const one of byId("window").children)
      one.setAttribute("aria-pressed", String(one === button));
    redraw();
  });
onThemeChange(() => {
  charts.rebuild();
  redraw();
});
onResize(byId("panels"), () => {
  charts.resize();
  redraw();
});
setInterval(() => {
  const shown = history();
  if (shown && player.isPlaying)
    player.tick(shown, connection.name === "open" && !start?.recording);
}, 50);
setInterval(drawState, 1000);

listen([
  { keys: [" ", "k"], shown: ["Space"], words: "pause, or play on", act: toggle },
  { keys: ["ArrowLeft"], shown: ["←"], words: "back one frame", act: () => move(-1) },
  { keys: ["ArrowRight"], shown: ["→"], words: "forward one frame", act: () => move(1) },
  { keys: ["Home"], shown: ["Home"], words: "the oldest frame", act: () => goTo(0) },
  { keys: ["End"], shown: ["End"], words: "the newest frame", act: () => player.follow() },
  {
    keys: [], // the slots themselves listen to these
    shown: ["↑", "↓", "Enter"],
    words: "in the slots: choose one, open its request",
    act: () => {},
  },
  { keys: ["+", "="], shown: ["+"], words: "wider steps", act: () => slots.widen(1) },
  { keys: ["-"], shown: ["-"], words: "narrower steps", act: () => slots.widen(-1) },
  { keys: ["v"], shown: ["v"], words: "slots as a picture or a table", act: toggleTable },
  { keys: ["s"], shown: ["s"], words: "say the state, for screen readers", act: sayAll },
  {
    keys: ["e"],
    shown: ["e"],
    words: "the next engine",
    act: () => choose((engine + 1) % Math.max(histories.size, 1)),
  },
  { keys: ["t"], shown: ["t"], words: "light or dark", act: toggleTheme },
  { keys: ["/"], shown: ["/"], words: "find a request", act: () => byId("find-id").focus() },
  { keys: ["Escape"], shown: ["Esc"], words: "close the request", act: () => life.close() },
  { keys: ["?"], shown: ["?"], words: "this list", act: () => byId("help-dialog").showModal() },
]);
drawLegends();
source.run();
