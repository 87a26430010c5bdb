// Products of pairs and MXFP4 weights of their experts: out[pairs, outputs] = x[pairs, inputs] weight[expert, outputs, inputs]^T.
//
// Pairs are in the order of their experts; PAIRS of one expert are a tile. A program has two boxes of LINES outputs of a
// tile: gate and up, or neighbours. Every program takes each `gridDim.x`th item:
//
//   item      | tile 0, block 0 | tile 0, block 1 | ... | tile 1, block 0 | ...
//
// A thread of one more warpgroup brings codes, their steps and inputs into shared memory, STAGES pieces of DEPTH inputs
// ahead, also of the next item. The others read 16 bytes of codes of each of two outputs (a line of each box) at a time,
// and decode them in registers, from which tensor cores read. So in DEPTH inputs the order is that of the threads:
// `fp4.py` says which, and inputs must have it. A gated product is written in this order.
//
// Set at compilation: PAIRS, STAGES, GATED, SILU, CLAMPED, ALPHA, LIMIT.

#define GROUPS 4
#define LINES 128
#define DEPTH 128
#define STEP_INPUTS 32                 // inputs that share a step
#define HALF_BYTES (PAIRS * 128)       // rows of 64 inputs, swizzled
#define BOX_BYTES (LINES * DEPTH / 2)
#define STEPS_BYTES (DEPTH / STEP_INPUTS * LINES * 2)
#define STAGE_BYTES (2 * (HALF_BYTES + BOX_BYTES + STEPS_BYTES))
#define WORDS (PAIRS > 64 ? 1 : 2)     // words of each output that are decoded at a time
#define READ (2 * WORDS)               // and that are read at a time; four are 16 bytes
#define OUTPUTS (GATED ? LINES : 2 * LINES)
#define MOST_EXPERTS 1024

__device__ __forceinline__ void fetch_box(u32 to, const Map* map, int x, int y, int expert, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(expert), "l"(policy)
      : "memory");
}

// sums[64 lines, PAIRS] (+)= weights of 16 inputs, held by the threads, by rows of shared memory; see nvrtc.py.
// void multiply(float (&sums)[PAIRS / 2], const u32 (&weights)[4], u64 rows, int is_sum)
// multiply

// A step twice, times 2^118, which only its exponent changes.
__device__ __forceinline__ u32 step_at(u32 at) {
  u16 step;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(step) : "r"(at) : "memory");
  return (u32)step * 0x00010001 + 0x3b003b00;
}
// Two numbers of 4 bits in bf16, times a step: sign, exponent and mantissa go to their bits there, which is 2^-126 of the
// number. A step has 2^118 of that, and the sum of a line gets the rest.
__device__ __forceinline__ u32 numbers(u32 signs, u32 sizes, u32 step) {
  u32 found;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(signs & 0x80008000 | sizes & 0x01c001c0), "r"(step));
  return found;
}

// Wait until the tensor cores have finished, and not before in the order of the program.
__device__ __forceinline__ void finished(float (&sums)[PAIRS / 2]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < PAIRS / 2; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

__device__ __forceinline__ float gated(float gate, float up) {
#if CLAMPED
  gate = fminf(gate, LIMIT), up = fminf(fmaxf(up, -LIMIT), LIMIT);
  return __fdividef(gate, 1.0f + __expf(-ALPHA * gate)) * (up + 1.0f);
#elif SILU
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
#else
  const float inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
  return __fdividef(gate, 1.0f + __expf(-2.0f * inner)) * up;  // (1 + tanh) / 2 is a sigmoid
#endif
}

// The tile of an item: its expert, its first pair, how many it has.
struct Tile { int expert, first, count; };
__device__ __forceinline__ Tile tile_at(const int* before, const int* ends, int experts, int tile) {
  int low = 0, high = experts;  // before[low] <= tile < before[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (before[middle] <= tile) low = middle; else high = middle;
  }
  const int first = (low ? ends[low - 1] : 0) + (tile - before[low]) * PAIRS;
  return {low, first, min(ends[low] - first, PAIRS)};
}

// `ends`: where the pairs of each expert end. `lines`: those of an expert; `outputs`: of the product.
extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 128, 1)
    fp4_experts(const __grid_constant__ Map weight, const __grid_constant__ Map step, const __grid_constant__ Map x,
                const float* scale, const float* bias, const int* ends, u16* out, int experts, int inputs, int outputs,
                int width, int is_biased) {
  extern __shared__ char memory[];
  __shared__ u64 barriers[2 * STAGES];
  __shared__ int before[MOST_EXPERTS + 1];  // tiles before those of an expert
  const u32 base = (place(memory) + 1023) & ~1023u;
  const u32 full = place(barriers), empty = full + 8 * STAGES;
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;

  start_next();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_init(full + 8 * stage, 1);
      barrier_init(empty + 8 * stage, GROUPS * 4);
    }
    barriers_ready_for_copies();
  }
  wait_for_front();
  if (threadIdx.x < 32) {
    int tiles = 0;
    for (int first = 0; first < experts; first += 32) {
      const int own = first + threadIdx.x, there = own < experts;
      const int pairs = there ? ends[own] - (own ? ends[own - 1] : 0) : 0, count = (pairs + PAIRS - 1) / PAIRS;
      int sum = count;
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const int other = __shfl_up_sync(~0u, sum, lanes);
        if (threadIdx.x >= lanes) sum += other;
      }
      if (there) before[own] = tiles + sum - count;
      tiles += __shfl_sync(~0u, sum, 31);
    }
    if (threadIdx.x == 0) before[experts] = tiles;
  }
  __syncthreads();
  const int depths = (inputs + DEPTH - 1) / DEPTH, blocks = (outputs + OUTPUTS - 1) / OUTPUTS;
  const int items = before[experts] * blocks;

  if (group == GROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (thread == 0) {
      const u64 once = 0x12F0000000000000, often = 0x14F0000000000000;  // cache hints: evict first, evict last
      int stage = 0, parity = 1;  // of a round before the first, so that stages are empty at the start
      for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const Tile tile = tile_at(before, ends, experts, item / blocks);
        const int line = item % blocks * OUTPUTS, other = line + (GATED ? outputs : LINES);
        for (int depth = 0; depth < depths; depth++) {
          const u32 here = full + 8 * stage;
          u32 to = base + stage * STAGE_BYTES;
          barrier_wait(empty + 8 * stage, parity);
          barrier_expect(here, STAGE_BYTES);
          fetch_rows(to, &x, depth * DEPTH, tile.first, here, often);
          fetch_rows(to + HALF_BYTES, &x, depth * DEPTH + DEPTH / 2, tile.first, here, often);
          to += 2 * HALF_BYTES;
          fetch_box(to, &weight, depth * DEPTH / 2, line, tile.expert, here, once);
          fetch_box(to + BOX_BYTES, &weight, depth * DEPTH / 2, other, tile.expert, here, once);
          to += 2 * BOX_BYTES;
          fetch_box(to, &step, line, depth * (DEPTH / STEP_INPUTS), tile.expert, here, once);
          fetch_box(to + STEPS_BYTES, &step, other, depth * (DEPTH / STEP_INPUTS), tile.expert, here, once);
          if (++stage == STAGES) stage = 0, parity ^= 1;
        }
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
  const int quarter = thread % 4, spot = group * 32 + thread / 32 * 8 + thread % 32 / 4;  // of the thread's lines in `out`
#if GATED
  // The line that is at this spot in the order of inputs.
  const int local = ((spot % 8) / 2 / 2) * 64 + (spot / 16 % 2) * 32 + ((spot % 8) / 2 % 2) * 16 + spot / 32 * 4 +
                    spot % 2 * 2 + spot % 16 / 8;
#else
  const int local = spot;
#endif
  const u32 codes_at = 2 * HALF_BYTES + local * (DEPTH / 2) + quarter * 16;
  const u32 steps_at = 2 * (HALF_BYTES + BOX_BYTES) + quarter / 2 * (2 * LINES * 2) + local * 2;
  int stage = 0, parity = 0;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    float found[PAIRS / 2];
    u32 held[2][2 * WORDS][4], last = 0;  // the barrier of the stage that tensor cores read
#pragma unroll
    for (int i = 0; i < PAIRS / 2; i++) found[i] = 0.f;
    for (int depth = 0; depth < depths; depth++) {
      const u32 at = base + stage * STAGE_BYTES;
      const u64 given = descriptor(at);
      u32 codes[2][READ], steps[2][2];  // of both boxes: words; steps of the lower and the upper codes of bytes
      barrier_wait(full + 8 * stage, parity);
#pragma unroll
      for (int box = 0; box < 2; box++)
#pragma unroll
        for (int half = 0; half < 2; half++) steps[box][half] = step_at(at + steps_at + box * STEPS_BYTES + half * (LINES * 2));
#pragma unroll
      for (int piece = 0; piece < 4 / WORDS; piece++) {
        if (piece * WORDS % READ == 0)
#pragma unroll
          for (int box = 0; box < 2; box++) words_at(at + codes_at + box * BOX_BYTES + piece * WORDS * 4, codes[box]);
        // Decode a piece while tensor cores multiply the one before. The one before that has finished.
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
#pragma unroll
        for (int w = 0; w < WORDS; w++)
#pragma unroll
          for (int box = 0; box < 2; box++) {
            const u32 word = codes[box][piece * WORDS % READ + w];
            u32(&lower)[4] = held[piece % 2][2 * w], (&upper)[4] = held[piece % 2][2 * w + 1];
            lower[box] = numbers(word << 12, word << 6, steps[box][0]);
            upper[box] = numbers(word << 8, word << 2, steps[box][1]);
            lower[2 + box] = numbers(word << 4, word >> 2, steps[box][0]);
            upper[2 + box] = numbers(word, word >> 6, steps[box][1]);
          }
        if (piece == 0) {  // across the loop, the compiler would serialize all of them
          finished(found);
          if (depth) {
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(last);
          }
        }
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 2 * WORDS; k++) {
          const int number = piece * 2 * WORDS + k;  // 32 bytes of inputs each; descriptors count in 16 bytes
          multiply(found, held[piece % 2][k], given + number / 4 * (HALF_BYTES / 16) + number % 4 * 2, 1);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      }
      last = empty + 8 * stage;
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    finished(found);
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(last);

    const Tile tile = tile_at(before, ends, experts, item / blocks);
    const int lines = GATED ? 2 * outputs : outputs, begin = item % blocks * OUTPUTS;
    const int line[2] = {begin + local, begin + local + (GATED ? outputs : LINES)};
    float by[2], more[2];
#pragma unroll
    for (int box = 0; box < 2; box++) {
      const bool there = line[box] < lines;
      by[box] = there ? scale[(u64)tile.expert * lines + line[box]] * 256.f : 0.f;
      more[box] = there && is_biased ? bias[(u64)tile.expert * lines + line[box]] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < PAIRS / 8; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int pair = i * 8 + quarter * 2 + j;
        if (pair >= tile.count) continue;
        const float one = found[4 * i + j] * by[0] + more[0], two = found[4 * i + 2 + j] * by[1] + more[1];
        u16* to = out + (u64)(tile.first + pair) * width + begin + spot;
#if GATED
        *to = line[0] < outputs ? (u16)::pair(gated(one, two), 0.f) : 0;  // inputs behind the last one
#else
        if (line[0] < outputs) *to = (u16)::pair(one, 0.f);
        if (line[1] < outputs) to[LINES] = (u16)::pair(two, 0.f);
#endif
      }
  }
}
