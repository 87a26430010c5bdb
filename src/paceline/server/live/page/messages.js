// The messages of the server, as types: engine/live/frames.py says what each field means.

/** @typedef {{plan: number, launch: number, wait: number, commit: number, report: number}} StepSplit */
/**
 * @typedef {{step: number, time: number, split: StepSplit, rows: number, positions: number,
 *   prompts: number, drafts: number, accepted: number, admitted: number, preempted: number,
 *   tokens: number, left_out: number, cells: string}} StepRecord
 */
/** [slot, step, request_id, child, prompt]
 * @typedef {[number, number, string, number, number]} Seat */
/**
 * @typedef {{size: number, held: number, shared: number, cached: number, free: number,
 *   per_cell: number, cells: string, age: number}} BlockCells
 */
/**
 * @typedef {{request_id: string, place: number, prompt: number, tenant: string, priority: number,
 *   waited: number, state: string, reason: string}} QueuedRequest
 */
/** @typedef {{first: QueuedRequest[], total: number}} QueueHead */
/** @typedef {{running: number, waiting: number, parked: number, swapped: number}} RequestCounts */
/**
 * @typedef {{steps: number, positions: number, tokens: number, drafted: number, accepted: number,
 *   admissions: number, finished: number, preemptions: number, prefix_queries: number,
 *   prefix_hits: number, swapped_out: number, swapped_in: number, attained: number,
 *   missed: number}} Totals
 */
/** @typedef {{bounds: number[], counts: number[], total: number}} LatencyCounts */
/**
 * @typedef {{tenant: string, weight: number, served: number, running: number, waiting: number}} TenantShare
 */
/**
 * @typedef {{engine: number, run: number, number: number, time: number, since: number,
 *   policy: string, slots: number, block_size: number, steps: StepRecord[], left_out: number,
 *   seats: Seat[], split: StepSplit, counts: RequestCounts, totals: Totals, usage: number,
 *   tokens_per_s: number, blocks: BlockCells, host: BlockCells, queue: QueueHead,
 *   first_token: LatencyCounts, between: LatencyCounts, tenants: TenantShare[],
 *   fair_share: number}} Frame
 */
/** @typedef {{phase: string, begin: number, end: number | null, step: number, cause: string}} LifePhase */
/**
 * @typedef {{happened: string, time: number, step: number, amount: number, cause: string,
 *   sentence: string}} LifeMoment
 */
/**
 * @typedef {{request_id: string, engine: number, state: string, arrival: number, now: number,
 *   prompt: number, known: number, computed: number, cached: number, limit: number,
 *   preemptions: number, tenant: string, priority: number, phases: LifePhase[],
 *   moments: LifeMoment[], sentences: string[], text: string | null}} RequestLife
 */
/**
 * @typedef {{version: string, model: string, engines: number, frame_s: number, kept: number,
 *   wall_offset: number | null, recording: string}} StreamStart
 */
/** @typedef {{engine: number, trouble: string, restarts: number}} StreamStatus */

/** What a cell of a slot means, by its character; `weight` decides where several share a pixel. */
export const CELLS = {
  p: { name: "prefill", words: "prefill", weight: 4 },
  c: { name: "cached", words: "prefill after a prefix hit", weight: 5 },
  d: { name: "decode", words: "decode", weight: 2 },
  s: { name: "drafts", words: "decode with drafts", weight: 3 },
  r: { name: "again", words: "computed again", weight: 6 },
  x: { name: "preempted", words: "preempted", weight: 7 },
  i: { name: "idle", words: "no position in this step", weight: 1 },
  ".": { name: "vacant", words: "vacant", weight: 0 },
};

/** What most blocks of a cell are, by its character. */
export const BLOCKS = {
  h: { name: "held", words: "held" },
  s: { name: "shared", words: "shared" },
  c: { name: "cached", words: "cached" },
  f: { name: "free", words: "free" },
};

/** The parts of a step's time, in their order. */
export const PARTS = /** @type {const} */ (["plan", "launch", "wait", "commit", "report"]);
export const PART_WORDS = {
  plan: "plan",
  launch: "launch",
  wait: "wait for the device",
  commit: "commit",
  report: "report and text",
};
