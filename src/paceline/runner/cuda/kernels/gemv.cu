// Linears of a few rows and quantized weights: out[rows, outputs] (+)= x[rows, inputs] weight[outputs, inputs]^T.
//
// Blocks stay on their multiprocessor and take turns with tiles: TILES times 16 outputs, and all inputs, so that a block
// computes the norm, the activation and the sum around the linear by itself. Its warps take turns with units of 128
// inputs of these tiles. One more warp adds the sums of a tile, in the order of the warps, while they go on: they wait
// only if it is BUFFERS tiles behind.
//
//   tile      | 0                               | 1                               | …     of a block
//   unit      | 0      | 1      | 2      | 3    | 0      | 1      | 2      | 3    | …
//   warp      | 0      | 1      | 2      | 0    | 1      | 2      | 0      | 1    | …     of three
//
// Weights go from memory to registers, AHEAD units of a warp in advance, where they are decoded as the tensor cores take
// them. The first ones are read while the previous kernel still runs. Rows are in shared memory.
//
// Set at compilation: FP8 (otherwise codes of 4 bits in panels, see int4_panels.py), GROUP (inputs that share a scale;
// of fp8: 128 for blocks of 128 x 128, 0 for rows), WARPS, TILES, AHEAD, NORMED, FACTORED, BIASED, ADDED, GATED, SILU.

#define UNIT 128
#define BUFFERS 4
#define THREADS (WARPS * 32 + 32)
#define PAD 8  // numbers between rows in shared memory, so that lanes read from different banks
#if FP8
#define WORDS 16  // of a lane, a tile and a unit
#define SCALES (GROUP ? 1 : 0)
#else
#define WORDS 8
#define SCALES (2 * (UNIT / GROUP))
#define PANEL_BYTES (128 * UNIT / 2 + 128 * 4 * (UNIT / GROUP))
#endif

struct Unit {
  u32 codes[TILES][WORDS];
  u32 scale[TILES][SCALES + 1];
};

__device__ __forceinline__ void words_of(const char* from, u32* to) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from));
}

// sums[16 outputs, 8 rows] += weights[16, 16] by rows[16, 8]. A lane has outputs lane / 4 and 8 more, and rows
// lane % 4 * 2 and the next one.
__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&weights)[4], u32 first, u32 second) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "r"(first), "r"(second));
}

#if FP8

// Two codes of fp8, the lower bytes of 16 bits each, as bf16: the exponents differ by 120.
__device__ __forceinline__ u32 decoded(u32 both) {
  const u32 moved = (both >> 4 & 0x07f007f0) | (both & 0x80008000);
  u32 found;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(found) : "r"(moved), "r"(0x7b807b80), "r"(0x80008000));
  return found;
}

// Read a unit of inputs of some tiles. A lane has 32 codes of outputs lane / 4 and 8 more.
__device__ __forceinline__ void read(Unit& to, const char* weight, const float* scale, const int (&tiles)[TILES],
                                     int unit, u64 inputs) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    const char* from = weight + (tiles[i] * 16 + lane / 4) * inputs + unit * UNIT + lane % 4 * 16;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      words_of(from + half * 64, to.codes[i] + half * 8);
      words_of(from + half * 64 + 8 * inputs, to.codes[i] + half * 8 + 4);
    }
    if (SCALES) to.scale[i][0] = __float_as_uint(__ldg(scale + tiles[i] * 16 / UNIT * (inputs / UNIT) + unit));
  }
}

// A lane has 16 consecutive inputs of each half of a unit. The 16 inputs of a step are four consecutive ones of four
// lanes: any order will do, if weights and rows have the same.
__device__ __forceinline__ void use(const Unit& unit, const u16* row, bool is_row, float (&sums)[TILES][4]) {
  float part[TILES][4] = {};
  float(&to)[TILES][4] = *(SCALES ? &part : &sums);
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    uint4 given[2] = {};
    if (is_row) {
      const uint4* from = reinterpret_cast<const uint4*>(row + half * 64 + lane % 4 * 16);
      given[0] = from[0], given[1] = from[1];
    }
    const u32 rows[8] = {given[0].x, given[0].y, given[0].z, given[0].w, given[1].x, given[1].y, given[1].z, given[1].w};
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        const u32 upper = unit.codes[i][half * 8 + step], lower = unit.codes[i][half * 8 + 4 + step];
        const u32 held[4] = {decoded(__byte_perm(upper, 0, 0x1404)), decoded(__byte_perm(lower, 0, 0x1404)),
                             decoded(__byte_perm(upper, 0, 0x3424)), decoded(__byte_perm(lower, 0, 0x3424))};
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

__device__ __forceinline__ u32 less(u32 both, u32 zeros) {
  u32 found;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(both), "r"(zeros));
  return found;
}

// Read a unit of inputs of some tiles. A panel has eight tiles, in two groups of four.
__device__ __forceinline__ void read(Unit& to, const char* weight, const float*, const int (&tiles)[TILES], int unit,
                                     u64 inputs) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    const int tile = tiles[i] % 8;
    const char* panel = weight + (tiles[i] / 8 * (inputs / UNIT) + unit) * PANEL_BYTES;
    const char* codes = panel + tile / 4 * 4096 + tile % 4 * 512 + lane * 16;
    words_of(codes, to.codes[i]);
    words_of(codes + 2048, to.codes[i] + 4);
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

// Copy rows to shared memory, times the factor. With a norm, also the squares of each row, by warps.
__device__ __forceinline__ void fetch_rows(u16* to, float (*squares)[WARPS + 1], const u16* x, const float* factor, int rows,
                                           int inputs) {
  for (int row = 0; row < rows; row++) {
    const u16* from = x + (u64)row * inputs;
    float sum = 0.f;
    for (int i = threadIdx.x * 8; i < inputs; i += THREADS * 8) {
      uint4 given = *reinterpret_cast<const uint4*>(from + i);
      u32* const parts[4] = {&given.x, &given.y, &given.z, &given.w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float first = low(*parts[j]), second = high(*parts[j]);
        if (NORMED) sum += first * first + second * second;
        if (FACTORED) *parts[j] = pair(first * __ldg(factor + i + 2 * j), second * __ldg(factor + i + 2 * j + 1));
      }
      *reinterpret_cast<uint4*>(to + row * (inputs + PAD) + i) = given;
    }
    if (NORMED) {
#pragma unroll
      for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
      if (threadIdx.x % 32 == 0) squares[row][threadIdx.x / 32] = sum;
    }
  }
}

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
      if (FP8 && !SCALES) found[j] *= __ldg(to.scale + tiles[j] * 16 + line);
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
extern "C" __global__ void __launch_bounds__(THREADS)
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
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
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
  asm volatile("griddepcontrol.launch_dependents;");
  fetch_rows(held, squares, x, factor, rows, inputs);
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
