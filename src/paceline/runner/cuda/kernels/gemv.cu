// Linears of a few rows: out[rows, outputs] (+)= x[rows, inputs] weight[outputs, inputs]^T.
//
// Blocks stay on their multiprocessor and take turns with tiles: TILES times 16 outputs, and all inputs, so that a block
// computes the norm, the activation and the sum around the linear by itself. Its warps take turns with units of 128
// inputs of these tiles, 64 of bf16. One more warp adds the sums of a tile, in the order of the warps, while they go on:
// they wait only if it is BUFFERS tiles behind.
//
//   tile      | 0                               | 1                               | …     of a block
//   unit      | 0      | 1      | 2      | 3    | 0      | 1      | 2      | 3    | …
//   warp      | 0      | 1      | 2      | 0    | 1      | 2      | 0      | 1    | …     of three
//
// Weights go from memory to registers, AHEAD units of a warp in advance, where they are decoded as the tensor cores take
// them. The first ones are read while the previous kernel still runs. Rows are in shared memory.
//
// Set at compilation: FORM (INT4, BF16 or FP8), GROUP (inputs that share a scale; of fp8: 128 for blocks of 128 x 128, 0 for
// rows), WARPS, TILES, AHEAD, NORMED, FACTORED, BIASED, ADDED, GATED, SILU.

#define UNIT (FORM == BF16 ? 64 : 128)
#if FORM != INT4
#define WORDS 16  // of a lane, a tile and a unit
#define SCALES (FORM == FP8 && GROUP ? 1 : 0)
#else
#define WORDS 8
#define SCALES (2 * (UNIT / GROUP))
#define PANEL_BYTES (128 * UNIT / 2 + 128 * 4 * (UNIT / GROUP))
#endif

struct Unit {
  u32 codes[TILES][WORDS];
  u32 scale[TILES][SCALES + 1];
};

#if FORM != INT4

// Read a unit of inputs of some tiles. A lane has 32 bytes of outputs lane / 4 and 8 more.
__device__ __forceinline__ void read(Unit& to, const char* weight, const float* scale, const int (&tiles)[TILES],
                                     int unit, u64 inputs) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    const u64 line = inputs * (FORM == BF16 ? 2 : 1);
    const char* from = weight + (tiles[i] * 16 + lane / 4) * line + unit * 128 + lane % 4 * 16;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      four_words(from + half * 64, to.codes[i] + half * 8);
      four_words(from + half * 64 + 8 * line, to.codes[i] + half * 8 + 4);
    }
    if (SCALES) to.scale[i][0] = __float_as_uint(__ldg(scale + tiles[i] * 16 / UNIT * (inputs / UNIT) + unit));
  }
}

// A lane has 16 bytes of each half of a unit. The 16 inputs of a step are four consecutive ones of four lanes: any order
// will do, if weights and rows have the same.
__device__ __forceinline__ void use(const Unit& unit, const u16* row, bool is_row, float (&sums)[TILES][4]) {
  float part[TILES][4] = {};
  float(&to)[TILES][4] = *(SCALES ? &part : &sums);
  const int lane = threadIdx.x % 32, each = UNIT / 8;  // inputs of a lane
#pragma unroll
  for (int half = 0; half < 2; half++) {
    u32 rows[each / 2] = {};
    if (is_row)
#pragma unroll
      for (int i = 0; i < each / 8; i++) {
        const uint4 given = reinterpret_cast<const uint4*>(row + half * UNIT / 2 + lane % 4 * each)[i];
        rows[4 * i] = given.x, rows[4 * i + 1] = given.y, rows[4 * i + 2] = given.z, rows[4 * i + 3] = given.w;
      }
#pragma unroll
    for (int step = 0; step < each / 4; step++)
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        const u32 *upper = unit.codes[i] + half * 8, *lower = upper + 4;
#if FORM == FP8
        const u32 held[4] = {of_fp8(upper[step] << 8), of_fp8(lower[step] << 8), of_fp8(upper[step]), of_fp8(lower[step])};
#else
        const u32 held[4] = {upper[2 * step], lower[2 * step], upper[2 * step + 1], lower[2 * step + 1]};
#endif
        multiply(to[i], held, rows[2 * step], rows[2 * step + 1]);
      }
  }
  if (SCALES)
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) sums[i][j] += part[i][j] * __uint_as_float(unit.scale[i][0]);
}

#else

// Read a unit of inputs of some tiles. A panel has eight tiles, in two groups of four.
__device__ __forceinline__ void read(Unit& to, const char* weight, const float*, const int (&tiles)[TILES], int unit,
                                     u64 inputs) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    const int tile = tiles[i] % 8;
    const char* panel = weight + (tiles[i] / 8 * (inputs / UNIT) + unit) * PANEL_BYTES;
    const char* codes = panel + tile / 4 * 4096 + tile % 4 * 512 + lane * 16;
    four_words(codes, to.codes[i]);
    four_words(codes + 2048, to.codes[i] + 4);
    const char* scales = panel + 128 * UNIT / 2 + (tile * 16 + lane / 4) * 4;
#pragma unroll
    for (int j = 0; j < SCALES; j++)
      to.scale[i][j] = __ldg(reinterpret_cast<const u32*>(scales + j / 2 * 512 + j % 2 * 32));
  }
}

// A word has the weights that a lane needs of 16 inputs: four pairs of codes, 4 bits apart. A number whose lowest 4 bits
// are a code is 128 + code in bf16. The lowest 5 bits of a scale are its zero.
__device__ __forceinline__ void use(const Unit& unit, const u16* row, bool is_row, float (&sums)[TILES][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int group = 0; group < UNIT / GROUP; group++) {
    float part[TILES][4] = {};
    u32 zeros[TILES][2];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const u32 zero = 0x4300 | (unit.scale[i][2 * group + j] & 31);
        zeros[i][j] = zero | zero << 16;
      }
#pragma unroll
    for (int step = group * GROUP / 16; step < (group + 1) * GROUP / 16; step++) {
      u32 first = 0, second = 0;
      if (is_row) {
        const u32* from = reinterpret_cast<const u32*>(row + step * 16 + lane % 4 * 2);
        first = from[0], second = from[4];
      }
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        const u32 word = unit.codes[i][step];
        u32 held[4];
#pragma unroll
        for (int j = 0; j < 4; j++) held[j] = less((word >> 4 * j & 0x000f000f) | 0x43004300, zeros[i][j % 2]);
        multiply(part[i], held, first, second);
      }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) sums[i][j] += part[i][j] * __uint_as_float(unit.scale[i][2 * group + j / 2] & ~31u);
  }
}

#endif

__device__ __forceinline__ float gated(float gate, float up) {
#if SILU
  return gate / (1.f + __expf(-gate)) * up;
#else
  const float inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
  return gate / (1.f + __expf(-2.f * inner)) * up;
#endif
}

// The tiles of a block at a turn, and the unit of a warp.
struct Spot {
  int turn, unit;

  __device__ __forceinline__ void advance(int units) {
    for (unit += WARPS; unit >= units; unit -= units) turn++;
  }
  __device__ __forceinline__ int tile(int i, int all) const {
    const int at = blockIdx.x + turn * gridDim.x;
    return GATED ? at + i * all : at * TILES + i;
  }
};

struct Output {
  u16* out;
  const float* scale;
  const u16* bias;
  int rows, outputs;
  float floor;
};

// Add up the sums of all warps, [warps, lines, rows], for the tiles of a turn, and write what they give.
__device__ __forceinline__ void finish(const Output& to, const float* sums, const float (*squares)[WARPS + 1],
                                       const int (&tiles)[TILES]) {
  const int lines = GATED ? 16 : TILES * 16;
  for (int i = threadIdx.x % 32; i < lines * to.rows; i += 32) {
    const int line = i % lines, row = i / lines;
    float found[2] = {0.f, 0.f};
#pragma unroll
    for (int j = 0; j < (GATED ? 2 : 1); j++) {
      const float* from = sums + (j * 16 + line) * to.rows + row;
#pragma unroll
      for (int k = 0; k < WARPS; k++) found[j] += from[k * TILES * 16 * to.rows];
      if (FORM == FP8 && !SCALES) found[j] *= __ldg(to.scale + tiles[j] * 16 + line);
    }
    if (NORMED) {
      float length = to.floor * to.floor;
#pragma unroll
      for (int k = 0; k <= WARPS; k++) length += squares[row][k];
      length = rsqrtf(length);
      found[0] *= length, found[1] *= length;
    }
    if (BIASED) {
      found[0] += low(__ldg(to.bias + tiles[0] * 16 + line));
      if (GATED) found[1] += low(__ldg(to.bias + tiles[TILES - 1] * 16 + line));
    }
    u16* at = to.out + (u64)row * to.outputs + tiles[0] * 16 + line;
    float value = GATED ? gated(found[0], found[1]) : found[0];
    if (ADDED) value += low(*at);
    *at = (u16)pair(value, 0.f);
  }
}

// scale: of rows or blocks of fp8. outputs: columns of `out`. floor: the smallest length that a norm divides by.
extern "C" __global__ void __launch_bounds__(THREADS, WARPS < 8 ? 2 : 1)
    gemv(const char* weight, const float* scale, const u16* x, const float* factor, const u16* bias, u16* out, int rows,
         int inputs, int outputs, float floor) {
  extern __shared__ __align__(16) u16 held[];  // rows, then sums [buffers, warps, lines, rows]
  __shared__ float squares[8][WARPS + 1];
  __shared__ alignas(8) u64 barriers[2 * BUFFERS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = inputs / UNIT;
  const int all = outputs / (GATED ? 16 : 16 * TILES), turns = (all - (int)blockIdx.x - 1) / (int)gridDim.x + 1;
  const u32 full = place(barriers), empty = full + 8 * BUFFERS;
  const int size = TILES * 16 * rows;  // of the sums of a warp
  float* const sums_of = reinterpret_cast<float*>(held + rows * (inputs + PAD));
  if (threadIdx.x == 0) {
    for (int i = 0; i < BUFFERS; i++) barrier_init(full + 8 * i, WARPS), barrier_init(empty + 8 * i, 1);
    barriers_ready();
  }
  Spot last{0, warp};  // the unit to be read next
  Unit ahead[AHEAD];
  auto fetch = [&](Unit& unit) {
    if (last.turn < turns) {
      int tiles[TILES];
#pragma unroll
      for (int i = 0; i < TILES; i++) tiles[i] = last.tile(i, all);
      read(unit, weight, scale, tiles, last.unit, inputs);
    }
    last.advance(units);
  };
  if (warp < WARPS)
#pragma unroll
    for (int i = 0; i < AHEAD; i++) fetch(ahead[i]);
  wait_for_front();
  start_next();
  fetch_rows(held, squares, x, factor, rows, inputs, THREADS);
  __syncthreads();
  if (warp == WARPS) {
    const Output to{out, scale, bias, rows, outputs, floor};
    for (int turn = 0; turn < turns; turn++) {
      const int buffer = turn % BUFFERS;
      int tiles[TILES];
#pragma unroll
      for (int i = 0; i < TILES; i++) tiles[i] = Spot{turn, 0}.tile(i, all);
      barrier_wait(full + 8 * buffer, turn / BUFFERS % 2);
      finish(to, sums_of + buffer * WARPS * size, squares, tiles);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * buffer);
    }
    return;
  }
  Spot now{0, warp};  // the unit to be used next
  float sums[TILES][4] = {};
  const u16* row = held + lane / 4 * (inputs + PAD);
  int turn = 0;
  // Every warp has a unit of every turn.
  auto end_turn = [&]() {
    const int buffer = turn % BUFFERS;
    if (turn >= BUFFERS) barrier_wait(empty + 8 * buffer, turn / BUFFERS % 2 ^ 1);
    float* to = sums_of + (buffer * WARPS + warp) * size;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int at = lane % 4 * 2 + j % 2;
        if (at < rows) to[(i * 16 + j / 2 * 8 + lane / 4) * rows + at] = sums[i][j];
        sums[i][j] = 0.f;
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
        use(ahead[i], row + now.unit * UNIT, lane / 4 < rows, sums);
      }
      now.advance(units);
      fetch(ahead[i]);
    }
  end_turn();
}
