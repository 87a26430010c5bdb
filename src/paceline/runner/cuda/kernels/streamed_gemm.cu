// Products whose time is that of reading the weights: out[rows, outputs] = x[rows, inputs] weight[outputs, inputs]^T.
//
// One or two waves of multiprocessors (SMs). Each has GROUPS warpgroups with LINES outputs each, of all rows, or with all of
// these outputs and their part of the rows (BY_ROWS), which reads less of the memory inside the SM; a thread of one more
// warpgroup brings weights and rows into it, STAGES pieces of DEPTH inputs ahead. SPLIT neighbours (a cluster) share the
// inputs of their outputs: then each adds up the sums of all of them for a share of the rows.
//
//   memory    | weights, rows | weights, rows | ...    filled in a circle: `full` when they are there,
//                                                      `empty` when every warp is done with them
//
// Weights and rows are bf16, or fp8 with a scale for each row of either (SCALED); or with scales of blocks of 128 outputs and
// inputs, and of 128 inputs of a row (BLOCKED): then each piece is a sum of its own, which is multiplied by its scales.
//
// Rows may be divided by their lengths (NORMED): the warpgroups add up squares of what passes through their memory.
//
// Set at compilation: TILES (64 rows each), LINES, BY_ROWS, SPLIT, STAGES, NORMED, SCALED, BLOCKED, and what becomes of the product:
//   PUT   out = product              ADD   out += product
//   SILU  out = silu(gate) * up      GELU  out = gelu(gate) * up     gate: the first half of the outputs, up: the second

#define GROUPS 2
#define SWIZZLE_BYTES 128              // of a row in a stage; eight of them make a pattern
#define DEPTH (SWIZZLE_BYTES / (SCALED ? 1 : 2))
#define ROWS (TILES * 64)
#define OUTPUTS (GROUPS * LINES)
#define BLOCK 128                      // outputs and inputs
#define PADDED 16                      // rows that have scales are a multiple of it
#if BLOCKED
#define SUMS part  // of a piece
#else
#define SUMS found
#endif
#define OWN_TILES (BY_ROWS ? TILES / GROUPS : TILES)  // of a warpgroup
#define OWN_LINES (BY_ROWS ? OUTPUTS : LINES)
#define WEIGHT_BYTES (OUTPUTS * SWIZZLE_BYTES)
#define STAGE_BYTES (WEIGHT_BYTES + ROWS * SWIZZLE_BYTES)
#define TILE_BYTES (64 * SWIZZLE_BYTES)
#define PIECE_BYTES 32                 // of a row, that one instruction multiplies
#define SUMS_BYTES (OUTPUTS * 4 + 32)  // of a row of sums, so that neighbours lie in different banks
#define IS_GATED (OUTCOME == SILU || OUTCOME == GELU)
#define WIDTH (IS_GATED ? LINES : OUTPUTS)  // what a processor writes of a row
#define SHARES (ROWS <= 64 ? 4 : ROWS <= 128 ? 2 : 1)  // threads that add up squares of a row
#if NORMED && (SPLIT > 1 || !IS_GATED || SCALED)
#error "only who sees all inputs of a row knows its length, and only gates are divided by it"
#endif

// sums[64 rows, OWN_LINES] (+)= 32 bytes of inputs of both; see nvrtc.py.
// void multiply(float (&sums)[OWN_LINES / 2], u64 rows, u64 lines, int is_sum)
// multiply

__device__ __forceinline__ void all_groups() { asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory"); }
__device__ __forceinline__ void neighbours() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Eight sums of a row, over all programs that share its inputs, in their order.
__device__ __forceinline__ void gather(float (&sums)[8], u32 at) {
#pragma unroll
  for (int share = 0; share < SPLIT; share++) {
    u32 there = at;
    float part[8];
#if SPLIT > 1
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(share));
#endif
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(part[i]), "=f"(part[i + 1]), "=f"(part[i + 2]), "=f"(part[i + 3])
                   : "r"(there + i * 4) : "memory");
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i] = share ? sums[i] + part[i] : part[i];
  }
}

__device__ __forceinline__ float act(float x) {
#if OUTCOME == GELU
  float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.0f + __expf(-2.0f * inner));  // (1 + tanh) / 2 is a sigmoid
#else
  return __fdividef(x, 1.0f + __expf(-x));
#endif
}

extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 128, 1)
    streamed(const __grid_constant__ Map weight, const __grid_constant__ Map x, u16* out, int rows, int inputs,
             int outputs, float floor, const float* row_scale, const float* line_scale) {
  extern __shared__ char memory[];
  __shared__ u64 barriers[2 * STAGES];
  __shared__ float factors[NORMED ? ROWS : 1];  // by which rows are multiplied
  const u32 base = (place(memory) + 1023) & ~1023u;
  const u32 full = place(barriers), empty = full + 8 * STAGES;
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int tile = blockIdx.x / SPLIT, share = blockIdx.x % SPLIT;
  const int depths = inputs / DEPTH, begin = depths * share / SPLIT, end = depths * (share + 1) / SPLIT;

  start_next();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_init(full + 8 * stage, 1);
      barrier_init(empty + 8 * stage, GROUPS * 4);
    }
    barriers_ready_for_copies();
  }
  __syncthreads();

  if (group == GROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");  // the fetching warpgroup gives its registers to the others
    if (thread == 0) {
      const u64 once = 0x12F0000000000000, often = 0x14F0000000000000;  // cache hints: evict first, evict last
      const int step = IS_GATED ? outputs : LINES;  // from the outputs of a warpgroup to those of the next
      int stage = 0, parity = 1;  // of a round before the first, so that stages are empty at the start
      for (int depth = begin, waited = 0; depth < end; depth++) {
        const u32 to = base + stage * STAGE_BYTES, here = full + 8 * stage;
        barrier_wait(empty + 8 * stage, parity);
        barrier_expect(here, WEIGHT_BYTES + rows * SWIZZLE_BYTES);
        for (int g = 0; g < GROUPS; g++)
          fetch_rows(to + g * LINES * SWIZZLE_BYTES, &weight, depth * DEPTH, tile * WIDTH + g * step, here, once);
        // Weights may be read before previous kernels have ended. When all stages have theirs, rows follow; until they
        // are there, too, no stage is full. Places of a stage behind the last row stay as they are: what comes of
        // them does not leave.
        if (++stage == STAGES) stage = 0, parity ^= 1;
        if (!waited && (depth + 1 - begin == STAGES || depth + 1 == end)) {
          wait_for_front();
          for (int early = begin; early <= depth; early++)
            fetch_rows(base + (early - begin) * STAGE_BYTES + WEIGHT_BYTES, &x, early * DEPTH, 0, full + 8 * (early - begin), often);
          waited = 1;
        } else if (waited) {
          fetch_rows(to + WEIGHT_BYTES, &x, depth * DEPTH, 0, here, often);
        }
      }
    }
    __syncwarp();
    if (SPLIT > 1) neighbours(), neighbours();  // as often as the others below
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  float found[OWN_TILES][OWN_LINES / 2], squares = 0.f;
  const int first_tile = BY_ROWS ? group * OWN_TILES : 0, first_line = BY_ROWS ? 0 : group * LINES;
  const int own = min((group * 128 + thread) / SHARES, ROWS - 1), piece = thread % SHARES * (8 / SHARES);
  int stage = 0, parity = 0, last = 0;
#if BLOCKED
  float part[OWN_TILES][OWN_LINES / 2];
#pragma unroll
  for (int t = 0; t < OWN_TILES; t++)
#pragma unroll
    for (int i = 0; i < OWN_LINES / 2; i++) found[t][i] = 0.f;
  // Outputs of a warpgroup are in one block or in two, the second of which begins with the eight at `cut`.
  const int all_lines = IS_GATED ? 2 * outputs : outputs, line = tile * WIDTH + (IS_GATED ? group * outputs : first_line);
  const int cut = (BLOCK - line % BLOCK) / 8, next = min(line / BLOCK + 1, all_lines / BLOCK - 1);
  // The outputs of the last warpgroup may begin behind the last block.
  const float* of_lines[2] = {line_scale + min(line / BLOCK, next) * depths, line_scale + next * depths};
  float given[OWN_TILES][2], blocks[2];  // scales of this piece
  const auto read = [&](int depth) {
    const float* of_rows = row_scale + depth * ((rows + PADDED - 1) / PADDED * PADDED);
#pragma unroll
    for (int t = 0; t < OWN_TILES; t++)
#pragma unroll
      for (int i = 0; i < 2; i++)
        given[t][i] = __ldcg(of_rows + min((first_tile + t) * 64 + thread / 32 * 16 + thread % 32 / 4 + i * 8, rows - 1));
#pragma unroll
    for (int i = 0; i < 2; i++) blocks[i] = of_lines[i][depth];
  };
  wait_for_front();  // scales of rows are there
  read(begin);
#endif
  for (int depth = begin; depth < end; depth++) {
    const u32 at = base + stage * STAGE_BYTES;
    const u64 here = descriptor(at + WEIGHT_BYTES + first_tile * TILE_BYTES), lines = descriptor(at + first_line * SWIZZLE_BYTES);
    barrier_wait(full + 8 * stage, parity);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < SWIZZLE_BYTES / PIECE_BYTES; k++)
#pragma unroll
      for (int t = 0; t < OWN_TILES; t++)  // descriptors count in 16 bytes
        multiply(SUMS[t], here + t * (TILE_BYTES / 16) + 2 * k, lines + 2 * k, !BLOCKED && depth > begin || k > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < (NORMED ? 8 / SHARES : 0); i++) {  // neighbours read from different banks
      u32 word[4];
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                   : "r"(at + WEIGHT_BYTES + own * SWIZZLE_BYTES + (piece + (i + own) % (8 / SHARES)) * 16) : "memory");
#pragma unroll
      for (int k = 0; k < 4; k++) squares += low(word[k]) * low(word[k]) + high(word[k]) * high(word[k]);
    }
#if BLOCKED
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(empty + 8 * stage);
#pragma unroll
    for (int t = 0; t < OWN_TILES; t++)
#pragma unroll
      for (int i = 0; i < OWN_LINES / 2; i++) {
        asm volatile("" : "+f"(part[t][i])::"memory");  // not before the wait
        found[t][i] += part[t][i] * (given[t][i / 2 % 2] * (i / 4 < cut ? blocks[0] : blocks[1]));
      }
    if (depth + 1 < end) read(depth + 1);
#else
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    __syncwarp();
    if (depth > begin && thread % 32 == 0) barrier_arrive(empty + 8 * last);
    last = stage;
#endif
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int t = 0; t < OWN_TILES; t++)
#pragma unroll
    for (int i = 0; i < OWN_LINES / 2; i++) asm volatile("" : "+f"(found[t][i])::"memory");  // not before the wait

  if (NORMED) {
#pragma unroll
    for (int lanes = 1; lanes < SHARES; lanes *= 2) squares += __shfl_xor_sync(~0u, squares, lanes);
    factors[own] = rsqrtf(squares + floor * floor);
  }
  // All sums, by rows, where weights were; then whole lines of them leave.
  all_groups();
#pragma unroll
  for (int t = 0; t < OWN_TILES; t++)
#pragma unroll
    for (int i = 0; i < OWN_LINES / 2; i += 2) {
      const int row = (first_tile + t) * 64 + thread / 32 * 16 + thread % 32 / 4 + i % 4 * 4;
      const int line = first_line + i / 4 * 8 + thread % 4 * 2;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(base + row * SUMS_BYTES + line * 4),
                   "f"(found[t][i]), "f"(found[t][i + 1]) : "memory");
    }
  if (SPLIT > 1)
    neighbours();
  else
    all_groups();
  wait_for_front();  // it may read what is written here
  const int stop = rows * (share + 1) / SPLIT * (WIDTH / 8);
#pragma unroll 2
  for (int i = rows * share / SPLIT * (WIDTH / 8) + group * 128 + thread; i < stop; i += GROUPS * 128) {
    const int row = i / (WIDTH / 8), line = i % (WIDTH / 8) * 8;
    if (tile * WIDTH + line >= outputs) continue;
    uint4* to = (uint4*)(out + (u64)row * outputs + tile * WIDTH + line);
    const u32 at = base + row * SUMS_BYTES + line * 4;
    float sums[8];
#if OUTCOME == ADD
    const uint4 old = *to;
#endif
    gather(sums, at);
#if SCALED && !BLOCKED
    const float by = row_scale[row];
    const float* scale = line_scale + tile * WIDTH + line;
#pragma unroll
    for (int n = 0; n < 8; n++) sums[n] *= by * scale[n];
#endif
#if IS_GATED
    float up[8];
    gather(up, at + LINES * 4);
#if SCALED && !BLOCKED
#pragma unroll
    for (int n = 0; n < 8; n++) up[n] *= by * scale[outputs + n];
#endif
#pragma unroll
    for (int n = 0; n < 8; n++) {
      if (NORMED) sums[n] *= factors[row], up[n] *= factors[row];
      sums[n] = act(sums[n]) * up[n];
    }
#elif OUTCOME == ADD
    sums[0] += low(old.x), sums[1] += high(old.x), sums[2] += low(old.y), sums[3] += high(old.y);
    sums[4] += low(old.z), sums[5] += high(old.z), sums[6] += low(old.w), sums[7] += high(old.w);
#endif
    *to = make_uint4(pair(sums[0], sums[1]), pair(sums[2], sums[3]), pair(sums[4], sums[5]), pair(sums[6], sums[7]));
  }
  if (SPLIT > 1) neighbours();  // its memory is still read
}
