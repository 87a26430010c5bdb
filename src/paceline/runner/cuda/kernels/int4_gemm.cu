// Products of some rows and weights of 4 bits: out[rows, outputs] (+)= x[rows, inputs] weight[outputs, inputs]^T.
//
// A block is LINES outputs of ROWS rows, those of the same outputs adjacent, and DEPTH inputs of it are a unit. Units are
// divided evenly among multiprocessors (SMs), in order:
//
//   block     | 0                   | 1                   | 2                   |
//   SM        | 0          | 1          | 2          | 3          | 4          |
//
// The SMs that share a block write their sums to memory; when all are there, each adds up some of them, in their order.
//
// A warpgroup has 64 outputs of a block. Codes are stored as its threads hold the weights for the tensor cores, so
// that a word is what a thread needs of 16 inputs: four pairs of codes, 4 bits apart. Weights are multiplied as
// integers, and the sum over a group of inputs by its scale, whose lowest 5 bits are the zero. With many rows (WIDE), there
// are no registers for these sums, and weights are multiplied by their scales first. A thread of one more warpgroup brings
// codes, scales and rows into shared memory, STAGES units ahead.
//
// Set at compilation: ROWS, GROUPS (warpgroups), GROUP (inputs that share a scale), STAGES, ADDED.

#define DEPTH 128
#define LINES (GROUPS * 64)
#define HALF_BYTES (ROWS * 128)  // rows of 64 inputs, swizzled
#define SCALES (DEPTH / GROUP)   // of a line in a unit
#define PANEL_BYTES (128 * DEPTH / 2 + 128 * 4 * SCALES)  // of two warpgroups: codes, then scales
#define WEIGHT_BYTES (GROUPS / 2 * PANEL_BYTES)
#define STAGE_BYTES ((2 * HALF_BYTES + WEIGHT_BYTES + 1023) / 1024 * 1024)  // rows are swizzled by their address
#define WIDE (ROWS > 64)
#define PIECE (WIDE || GROUP < 64 ? 32 : 64)  // inputs that are decoded at a time

__device__ __forceinline__ void fetch_bytes(u32 to, const char* from, int bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// sums[64 lines, ROWS] (+)= weights of 16 inputs, held by the threads, by rows of shared memory; see nvrtc.py.
// void multiply(float (&sums)[ROWS / 2], const u32 (&weights)[4], u64 rows, int is_sum)
// multiply

__device__ __forceinline__ void all_groups() { asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory"); }

__device__ __forceinline__ u32 word_at(u32 at) {
  u32 word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
  return word;
}
// Two codes as bf16: a number whose lowest 4 bits are a code is 128 + code.
__device__ __forceinline__ u32 spread(u32 word) { return (word & 0x000f000f) | 0x43004300; }

// A scale twice, as the sum of two numbers in bf16.
struct Scale {
  u32 most, rest;
  __device__ __forceinline__ void set(float scale) {
    most = pair(scale, scale);
    const float left = scale - low(most);
    rest = pair(left, left);
  }
  __device__ __forceinline__ u32 times(u32 both) const {
    u32 found;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(both), "r"(rest));
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(found) : "r"(both), "r"(most));
    return found;
  }
};

// Wait until the tensor cores have finished, and not before in the order of the program.
__device__ __forceinline__ void finished(float (&part)[ROWS / 2]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) asm volatile("" : "+f"(part[i])::"memory");
}

__device__ __forceinline__ int arrive(int* counter) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
__device__ __forceinline__ int arrived(const int* counter) {
  int count;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
}

__device__ __forceinline__ void put(u16* to, float value) {
#if ADDED
  value += __uint_as_float((u32)*to << 16);
#endif
  *to = (u16)pair(value, 0.f);
}
__device__ __forceinline__ void put(u16* to, float4 values) {
  uint2* spot = (uint2*)to;
#if ADDED
  const uint2 old = *spot;
  values.x += low(old.x), values.y += high(old.x), values.z += low(old.y), values.w += high(old.y);
#endif
  *spot = make_uint2(pair(values.x, values.y), pair(values.z, values.w));
}

// The SMs that share a block, and where their sums are. An SM has sums of two blocks at most: of the one that it begins
// in, and of the one that it ends in.
struct Shares {
  int depths, units, sms, first, count;
  __device__ __forceinline__ Shares(int block, int depths, int units, int sms) : depths(depths), units(units), sms(sms) {
    first = owner((long long)block * depths), count = owner((long long)(block + 1) * depths - 1) - first + 1;
  }
  __device__ __forceinline__ int owner(long long unit) const { return ((unit + 1) * sms - 1) / units; }
  __device__ __forceinline__ int part(int sm, int block) const {
    return sm * 2 + (block != (long long)units * sm / sms / depths);
  }
};

// `parts`: [SMs, 2, ROWS, LINES]; `counters`: [blocks, 2], zeros between kernels; `tiles`: of rows.
extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 128, 1)
    int4_gemm(const char* weight, const __grid_constant__ Map x, u16* out, float* parts, int* counters, int rows, int tiles,
              int inputs, int outputs) {
  extern __shared__ char memory[];
  __shared__ u64 barriers[2 * STAGES];
  const u32 base = (place(memory) + 1023) & ~1023u;
  const u32 full = place(barriers), empty = full + 8 * STAGES;
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int depths = inputs / DEPTH, units = outputs / LINES * tiles * depths, own = blockIdx.x, sms = gridDim.x;
  const int begin = (long long)units * own / sms, end = (long long)units * (own + 1) / sms;

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
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (thread == 0) {
      const u64 once = 0x12F0000000000000, often = 0x14F0000000000000;  // cache hints: evict first, evict last
      int stage = 0, parity = 1;  // of a round before the first, so that stages are empty at the start
      for (int unit = begin, waited = 0; unit < end; unit++) {
        const u32 to = base + stage * STAGE_BYTES, here = full + 8 * stage;
        const int block = unit / depths, depth = unit % depths;
        barrier_wait(empty + 8 * stage, parity);
        barrier_expect(here, WEIGHT_BYTES + 2 * min(rows, ROWS) * 128);
#pragma unroll
        for (int p = 0; p < GROUPS / 2; p++) {
          const u64 panel = (u64)(block / tiles * (GROUPS / 2) + p) * depths + depth;
          fetch_bytes(to + 2 * HALF_BYTES + p * PANEL_BYTES, weight + panel * PANEL_BYTES, PANEL_BYTES, here, once);
        }
        if (++stage == STAGES) stage = 0, parity ^= 1;
        // Weights may be read before previous kernels have ended, rows may not.
        if (!waited && (unit + 1 - begin == STAGES || unit + 1 == end)) {
          wait_for_front();
          for (int early = begin; early <= unit; early++)
            for (int half = 0; half < 2; half++)
              fetch_rows(base + (early - begin) * STAGE_BYTES + half * HALF_BYTES, &x, early % depths * DEPTH + half * 64,
                         early / depths % tiles * ROWS, full + 8 * (early - begin), often);
          waited = 1;
        } else if (waited) {
          for (int half = 0; half < 2; half++)
            fetch_rows(to + half * HALF_BYTES, &x, depth * DEPTH + half * 64, block % tiles * ROWS, here, often);
        }
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(GROUPS == 2 ? 232 : 112));  // what the others gave
  const int line = group * 64 + thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;  // the first of a thread
  const u32 codes_at = group / 2 * PANEL_BYTES + group % 2 * (64 * DEPTH / 2) + thread * 16;
  const u32 scales_at = group / 2 * PANEL_BYTES + 128 * DEPTH / 2 + (line % 128) * 4;
  int stage = 0, parity = 0;
  for (int unit = begin; unit < end;) {
    const int block = unit / depths, stop = min(end, (block + 1) * depths), first = unit;
    float found[ROWS / 2], part[ROWS / 2], by[2] = {0.f, 0.f};  // `part` is of a group, and `by` its scales
    float(&sums)[ROWS / 2] = WIDE ? found : part;               // of the tensor cores
    u32 held[2][PIECE / 16][4];
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) found[i] = part[i] = 0.f;
    u32 before = 0;  // the barrier of the stage that tensor cores read
    for (; unit < stop; unit++) {
      const u32 at = base + stage * STAGE_BYTES, weights = at + 2 * HALF_BYTES;
      const u64 given = descriptor(at);
      u32 scales[2], zeros[2];
      Scale scale[2];
      barrier_wait(full + 8 * stage, parity);
#pragma unroll
      for (int piece = 0; piece < DEPTH / PIECE; piece++) {
        const bool is_new = piece * PIECE % GROUP == 0;
        if (is_new) {
          const u32 from = weights + scales_at + piece * PIECE / GROUP * 512;
#pragma unroll
          for (int i = 0; i < 2; i++) {
            scales[i] = word_at(from + 32 * i);
            zeros[i] = (scales[i] & 31) * 0x00010001 | 0x43004300;
            if (WIDE) scale[i].set(__uint_as_float(scales[i] & ~31));
          }
        }
        // Decode a piece while tensor cores multiply the one before. The one before that has finished.
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        u32 word[PIECE / 16];
        words_at(weights + codes_at + piece * PIECE / 64 * 2048 + piece * PIECE % 64 / 4, word);
#pragma unroll
        for (int k = 0; k < PIECE / 16; k++)
#pragma unroll
          for (int j = 0; j < 4; j++) {
            const u32 whole = less(spread(word[k] >> 4 * j), zeros[j % 2]);
            held[piece % 2][k][j] = WIDE ? scale[j % 2].times(whole) : whole;
          }
        if (WIDE ? piece == 0 : is_new) {
          finished(sums);
#pragma unroll
          for (int i = 0; i < (WIDE ? 0 : ROWS / 2); i++) found[i] += part[i] * by[i / 2 % 2];
#pragma unroll
          for (int i = 0; i < 2; i++) by[i] = __uint_as_float(scales[i]);
          if (piece == 0 && unit > first) {
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(before);
          }
        }
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < PIECE / 16; k++) {
          const int step = piece * (PIECE / 16) + k;  // 32 bytes of rows each; descriptors count in 16 bytes
          multiply(sums, held[piece % 2][k], given + step / 4 * (HALF_BYTES / 16) + step % 4 * 2, WIDE || k > 0 || !is_new);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      }
      before = empty + 8 * stage;
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    finished(sums);
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(before);
#pragma unroll
    for (int i = 0; i < (WIDE ? 0 : ROWS / 2); i++) found[i] += part[i] * by[i / 2 % 2];
    wait_for_front();  // it may read what is written here
    const int count = min(rows - block % tiles * ROWS, ROWS);
    u16* here = out + (u64)(block % tiles * ROWS) * outputs + block / tiles * LINES;
    const Shares shares(block, depths, units, sms);
    if (shares.count == 1) {
#pragma unroll
      for (int i = 0; i < ROWS / 2; i++) {
        const int row = i / 4 * 8 + column + i % 2;
        if (row < count) put(here + (u64)row * outputs + line + i / 2 % 2 * 8, found[i]);
      }
      continue;
    }
    float* to = parts + (u64)shares.part(own, block) * (ROWS * LINES);
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
      const int row = i / 4 * 8 + column + i % 2;
      if (row < count) __stcg(to + row * LINES + line + i / 2 % 2 * 8, found[i]);
    }
    __threadfence();
    all_groups();
    if (threadIdx.x == 0) arrive(counters + block * 2);
  }
  // Now that all others work on their last unit, too, add up what is shared.
  for (int block = begin / depths; block <= (end - 1) / depths; block = max(block + 1, (end - 1) / depths)) {
    const Shares shares(block, depths, units, sms);
    if (shares.count == 1) continue;
    int* counter = counters + block * 2;
    if (threadIdx.x == 0)
      while (arrived(counter) < shares.count) {}
    all_groups();
    const int count = min(rows - block % tiles * ROWS, ROWS), pieces = count * (LINES / 128), share = own - shares.first;
    const int from = pieces * share / shares.count * 128, to = pieces * (share + 1) / shares.count * 128;
    const float* of_first = parts + (u64)shares.part(shares.first, block) * (ROWS * LINES);
    const float* of_next = parts + (u64)(shares.first + 1) * 2 * (ROWS * LINES);  // it and the others begin in this block
    u16* here = out + (u64)(block % tiles * ROWS) * outputs + block / tiles * LINES;
    for (int i = from + threadIdx.x * 4; i < to; i += GROUPS * 128 * 4) {
      float4 sum = __ldcg((const float4*)(of_first + i));
#pragma unroll 4
      for (int other = 0; other < shares.count - 1; other++) {
        const float4 one = __ldcg((const float4*)(of_next + (u64)other * 2 * (ROWS * LINES) + i));
        sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
      }
      put(here + (u64)(i / LINES) * outputs + i % LINES, sum);
    }
    all_groups();
    if (threadIdx.x == 0 && arrive(counter + 1) == shares.count - 1) counter[0] = counter[1] = 0;
  }
}
