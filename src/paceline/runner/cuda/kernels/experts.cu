// Experts of few rows: each pair of a row and one of its experts is computed by itself. One kernel computes act(gate) * up
// of all pairs, times their shares, the next one adds `down` of each row's pairs to it, which is one linear of their inputs
// side by side. Both choose the experts by themselves from the scores of the router, or read what was chosen. A shared
// expert is one more pair of each row; the last score may be its gate.
//
// The structure is that of gemv.cu: blocks take turns with tiles of 16 outputs (GATED: and the 16 of `up`), warps with
// units of the inputs of a tile, and one more warp adds up their sums, in the order of the warps. Weights go from memory to
// registers, where they are decoded as the tensor cores take them; of eight columns that these multiply, one is used.
//
// `down` reads scores and its first weights while `gate_up` still runs: `gate_up` lets it start when the router has ended.
//
// Set at compilation: FORM (FP8 or BF16), BLOCKED (fp8: scales of 128 x 128 instead of outputs), WARPS, AHEAD, GATED
// (otherwise `down`), INPUTS, OUTPUTS (of an expert), COUNT (experts), CHOSEN, NORMED, FACTORED, BIASED, SILU, ALPHA, LIMIT
// (of gates with a clamp; otherwise 0), SHARED (experts: 0 or 1), GATE (of it), SCORED (otherwise experts are chosen),
// SIGMOID, CORRECTED, SUMS_TO_ONE, SCALE (of shares).

#define UNIT (FORM == BF16 ? 64 : 128)
#define MOST_ROWS 8
#define TILES (GATED ? 2 : 1)
#define INNER (GATED ? OUTPUTS / 2 : INPUTS)
#define PAIRS (CHOSEN + SHARED)                    // of a row
#define WIDTH (GATED ? INPUTS : PAIRS * INPUTS)    // of a row of x
#define UNITS (WIDTH / UNIT)                       // of a tile
#define PER_EXPERT (INPUTS / UNIT)                 // units of an expert in a tile
#define TURNS (GATED ? PAIRS * (INNER / 16) : OUTPUTS / 16)  // of a row

#define WORDS 16  // of a lane, a tile and a unit

// Of all experts, and of the shared one.
struct Weights {
  const char *weight, *shared;
  const float *scale, *shared_scale;
};

struct Unit {
  u32 codes[TILES][WORDS];
  float scale[TILES][2];
};

// Read a unit of the inputs of a tile of an expert. A lane has 32 bytes of outputs lane / 4 and 8 more.
__device__ __forceinline__ void read(Unit& to, int i, const Weights& of, int expert, int line, int unit) {
  const bool is_shared = SHARED && expert == COUNT;
  const char* weight = is_shared ? of.shared : of.weight;
  const float* scale = is_shared ? of.shared_scale : of.scale;
  if (is_shared) expert = 0;
  const int lane = threadIdx.x % 32, group = lane / 4, part = lane % 4;
  const u64 first = (u64)expert * OUTPUTS + line;
  const u64 row = (u64)INPUTS * (FORM == BF16 ? 2 : 1);
  const char* from = weight + (first + group) * row + unit * 128 + part * 16;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    four_words(from + half * 64, to.codes[i] + half * 8);
    four_words(from + half * 64 + 8 * row, to.codes[i] + half * 8 + 4);
  }
  if (FORM == FP8 && BLOCKED) {
    to.scale[i][0] = __ldg(scale + (first / 128) * (INPUTS / 128) + unit);
    to.scale[i][1] = to.scale[i][0];
  } else if (FORM == FP8) {
    to.scale[i][0] = __ldg(scale + first + group);
    to.scale[i][1] = __ldg(scale + first + group + 8);
  }
}

// Multiply a unit of some tiles by inputs, which the first four lanes read: the only column.
__device__ __forceinline__ void use(const Unit& unit, const u16* x, float (&sums)[TILES][4]) {
  const int lane = threadIdx.x % 32;
  float sum[TILES][4] = {};
  float(&to)[TILES][4] = *(FORM == BF16 ? &sums : &sum);
#pragma unroll
  for (int piece = 0; piece < UNIT / 32; piece++) {  // of 32 inputs, eight of a lane
    const bool is_fp8 = FORM == FP8;
    uint4 given = {};
    // A piece of fp8 has eight of the 16 inputs of a lane.
    const int at = is_fp8 ? piece / 2 * 64 + lane * 16 + piece % 2 * 8 : piece * 32 + lane * 8;
    if (lane < 4) given = *reinterpret_cast<const uint4*>(x + at);
    const u32 inputs[4] = {given.x, given.y, given.z, given.w};
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        u32 held[4];
#if FORM == FP8
        const u32 upper = unit.codes[i][piece / 2 * 8 + piece % 2 * 2 + step];
        const u32 lower = unit.codes[i][piece / 2 * 8 + piece % 2 * 2 + step + 4];
        held[0] = of_fp8(upper << 8), held[1] = of_fp8(lower << 8), held[2] = of_fp8(upper), held[3] = of_fp8(lower);
#else
        const u32* codes = unit.codes[i] + piece * 8 + 2 * step;
        held[0] = codes[0], held[1] = codes[4], held[2] = codes[1], held[3] = codes[5];
#endif
        multiply(to[i], held, inputs[2 * step], inputs[2 * step + 1]);
      }
  }
  if (FORM != BF16)
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      sums[i][0] += sum[i][0] * unit.scale[i][0];
      sums[i][2] += sum[i][2] * unit.scale[i][1];
    }
}

// The experts of a row and their shares, by a warp: the best first, and of equals the one with the lowest number.
#define SCORES ((COUNT + 31) / 32)  // of a lane

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int by = 16; by; by /= 2) value += __shfl_xor_sync(~0u, value, by);
  return value;
}
__device__ __forceinline__ u32 ordered(float value) {  // numbers that compare as the floats do
  const u32 bits = __float_as_uint(value);
  return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

__device__ __forceinline__ void choose(const float* scores, const float* correction, int* expert, float* share) {
  const int lane = threadIdx.x % 32;
  float given[SCORES];
#pragma unroll
  for (int i = 0; i < SCORES; i++) given[i] = i * 32 + lane < COUNT ? __ldcg(scores + i * 32 + lane) : -INFINITY;
  if (SHARED && lane == 0) {
    expert[CHOSEN] = COUNT;
    share[CHOSEN] = GATE ? 1.f / (1.f + __expf(-__ldcg(scores + COUNT))) : 1.f;
  }
  float total = 1.f, left[SCORES];
  if (!SIGMOID) {
    float peak = -INFINITY;
#pragma unroll
    for (int i = 0; i < SCORES; i++) peak = fmaxf(peak, given[i]);
#pragma unroll
    for (int by = 16; by; by /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, by));
    total = 0.f;
#pragma unroll
    for (int i = 0; i < SCORES; i++) total += given[i] = __expf(given[i] - peak);
    if (CORRECTED || !SUMS_TO_ONE) total = warp_sum(total);
  } else {
#pragma unroll
    for (int i = 0; i < SCORES; i++) given[i] = 1.f / (1.f + __expf(-given[i]));
  }
#pragma unroll
  for (int i = 0; i < SCORES; i++) {
    const int at = i * 32 + lane;
    left[i] = at >= COUNT ? -INFINITY : CORRECTED ? given[i] / total + __ldg(correction + at) : given[i];
  }
  float sum = 0.f, own = 0.f;  // of all shares, and of the rank that is the lane's number
  int best = 0;
#pragma unroll 1
  for (int rank = 0; rank < CHOSEN; rank++) {
    float peak = left[0], value = given[0];
    int at = lane;
#pragma unroll
    for (int i = 1; i < SCORES; i++)
      if (left[i] > peak) peak = left[i], value = given[i], at = i * 32 + lane;
    const u32 most = __reduce_max_sync(~0u, ordered(peak));
    const int found = __reduce_min_sync(~0u, ordered(peak) == most ? at : 1 << 20);
    value = __shfl_sync(~0u, value, found % 32);
    sum += value;
    if (lane == rank) best = found, own = value;
#pragma unroll
    for (int i = 0; i < SCORES; i++)
      if (found == i * 32 + lane) left[i] = -INFINITY;
  }
  if (SUMS_TO_ONE) total = sum;
  if (lane < CHOSEN) expert[lane] = best, share[lane] = own / total * SCALE;
}

__device__ __forceinline__ float gated(float gate, float up) {
  if (LIMIT > 0.f) {
    gate = fminf(gate, LIMIT), up = fminf(fmaxf(up, -LIMIT), LIMIT);
    return gate / (1.f + __expf(-ALPHA * gate)) * (up + 1.f);
  }
  if (SILU) return gate / (1.f + __expf(-gate)) * up;
  const float inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
  return gate / (1.f + __expf(-2.f * inner)) * up;
}

// The tile of a block at a turn, and the unit of a warp.
struct Spot {
  int turn, unit;

  __device__ __forceinline__ void advance() {
    for (unit += WARPS; unit >= UNITS; unit -= UNITS) turn++;
  }
  __device__ __forceinline__ int tile() const { return blockIdx.x + turn * gridDim.x; }
};

// Add up the sums of all warps, [warps, lines], for a tile, and write what they give.
__device__ __forceinline__ void finish(u16* out, const float* bias, float floor, const float* sums,
                                       const float (*squares)[WARPS + 1], int tile, const int (*expert)[PAIRS],
                                       const float (*share)[PAIRS]) {
  const int line = threadIdx.x % 32, row = tile / TURNS, at = tile % TURNS;
  if (line >= 16) return;
  float found[TILES] = {};
#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int k = 0; k < WARPS; k++) found[i] += sums[(k * TILES + i) * 16 + line];
  if (GATED) {
    const int rank = at / (INNER / 16), own = at % (INNER / 16) * 16 + line;
    if (NORMED) {
      float length = floor * floor;
#pragma unroll
      for (int k = 0; k < WARPS; k++) length += squares[row][k];
      length = rsqrtf(length);
      found[0] *= length, found[TILES - 1] *= length;
    }
    if (BIASED) {
      const float* from = bias + (u64)expert[row][rank] * OUTPUTS + own;
      found[0] += __ldg(from), found[TILES - 1] += __ldg(from + INNER);
    }
    const float value = gated(found[0], found[TILES - 1]) * share[row][rank];
    out[(u64)(row * PAIRS + rank) * INNER + own] = (u16)pair(value, 0.f);
  } else {
    u16* to = out + (u64)row * OUTPUTS + at * 16 + line;
    float value = low(*to) + found[0];
    if (BIASED)
      for (int k = 0; k < PAIRS; k++) value += share[row][k] * __ldg(bias + (u64)expert[row][k] * OUTPUTS + at * 16 + line);
    *to = (u16)pair(value, 0.f);
  }
}

// x: rows of the residual stream, or gates times ups of all pairs. floor: the smallest length that the norm divides by.
// scores, correction: if not scored, a tile of each pair, whose first number is an expert, and shares.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    experts(const char* weight, const float* scale, const char* shared, const float* shared_scale,
            const float* bias, const float* scores, const float* correction, const u16* x, const float* factor, u16* out,
            int rows, float floor) {
  extern __shared__ __align__(16) u16 held[];
  __shared__ float squares[MOST_ROWS][WARPS + 1];
  __shared__ float all_sums[BUFFERS][WARPS * TILES * 16];
  __shared__ int expert[MOST_ROWS][PAIRS];
  __shared__ float share[MOST_ROWS][PAIRS];
  __shared__ alignas(8) u64 barriers[2 * BUFFERS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int all = rows * TURNS, turns = (all - (int)blockIdx.x - 1) / (int)gridDim.x + 1;
  const u32 full = place(barriers), empty = full + 8 * BUFFERS;
  if (threadIdx.x == 0) {
    for (int i = 0; i < BUFFERS; i++) barrier_init(full + 8 * i, WARPS), barrier_init(empty + 8 * i, 1);
    barriers_ready();
  }
  if (GATED) wait_for_front();
  start_next();
  auto find = [&](int row) {
    if (SCORED) {
      choose(scores + row * (COUNT + GATE), correction, expert[row], share[row]);
    } else if (lane < PAIRS) {
      const int at = row * PAIRS + lane;
      expert[row][lane] = __ldcg(reinterpret_cast<const int*>(scores) + at * 3);
      share[row][lane] = __ldcg(correction + at);
    }
  };
  // One warp chooses for the first row, while the others fetch rows.
  if (warp < WARPS && GATED) fetch_rows(held, squares, x, factor, rows, WIDTH, WARPS * 32);
  for (int row = (warp + 1) % (WARPS + 1); row < rows; row += WARPS + 1) find(row);
  __syncthreads();
  const Weights of{weight, shared, scale, shared_scale};
  Spot last{0, warp};  // the unit to be read next
  Unit ahead[AHEAD];
  auto fetch = [&](Unit& unit) {
    if (last.turn < turns) {
      const int tile = last.tile(), row = tile / TURNS, at = tile % TURNS;
      if (GATED) {
        const int own = expert[row][at / (INNER / 16)], line = at % (INNER / 16) * 16;
#pragma unroll
        for (int i = 0; i < TILES; i++) read(unit, i, of, own, line + i * INNER, last.unit);
      } else {
        read(unit, 0, of, expert[row][last.unit / PER_EXPERT], at * 16, last.unit % PER_EXPERT);
      }
    }
    last.advance();
  };
  if (warp < WARPS)
#pragma unroll
    for (int i = 0; i < AHEAD; i++) fetch(ahead[i]);
  if (!GATED) {
    wait_for_front();
    fetch_rows(held, squares, x, factor, rows, WIDTH, THREADS);
    __syncthreads();
  }
  if (warp == WARPS) {
    for (int turn = 0; turn < turns; turn++) {
      const int buffer = turn % BUFFERS;
      barrier_wait(full + 8 * buffer, turn / BUFFERS % 2);
      finish(out, bias, floor, all_sums[buffer], squares, Spot{turn, 0}.tile(), expert, share);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * buffer);
    }
    return;
  }
  Spot now{0, warp};  // the unit to be used next
  float sums[TILES][4] = {};
  int turn = 0;
  // Every warp has a unit of every turn.
  auto end_turn = [&]() {
    const int buffer = turn % BUFFERS;
    if (turn >= BUFFERS) barrier_wait(empty + 8 * buffer, turn / BUFFERS % 2 ^ 1);
    float* to = all_sums[buffer] + warp * TILES * 16;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      if (lane % 4 == 0) to[i * 16 + lane / 4] = sums[i][0], to[i * 16 + lane / 4 + 8] = sums[i][2];
#pragma unroll
      for (int j = 0; j < 4; j++) sums[i][j] = 0.f;
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(full + 8 * buffer);
    turn++;
  };
  while (now.turn < turns)
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      if (now.turn < turns) {
        if (now.turn > turn) end_turn();
        use(ahead[i], held + now.tile() / TURNS * (WIDTH + PAD) + now.unit * UNIT, sums);
      }
      now.advance();
      fetch(ahead[i]);
    }
  end_turn();
}
