// Attention of rows with more than one position: tiles of queries against tiles of keys, on tensor cores.
//
//   query     a tile is 128 pairs of a position and one of the GROUP queries that share keys; positions outermost
//   keys      tiles of 128, in chunks of CHUNK cells that are adjacent in the store
//
// Multiprocessors draw units: a head of keys and a tile of queries. They go through one head after the other, so that its
// keys stay in the cache, and of a head those with the most keys are first. Two warpgroups have 64 pairs each; a warp of a
// third one brings queries, keys and values into memory, in the order in which they are needed. While the matrix units
// sum values by the weights of one tile, weights of the next are made of its scores; warpgroups take turns to start them:
//
//   keys 0 | keys 1, values 0 | keys 2, values 1 | ... | values n
//
// Set at compilation: KV_HEADS, GROUP, POSITIONS (that a tile of queries touches at most), BLOCK (cells of a block),
// CHUNK, SLOTS (tiles of keys or values in memory).

#define DIM 128
#define PAIRS 128
#define KEYS 128
#define CHUNKS (KEYS / CHUNK)
#define LINES 8           // of 128 bytes, swizzled so that eight can be read at once
#define HALF_BYTES 1024   // 64 dimensions of eight cells
#define LINES_BYTES 2048  // and the other 64 behind them
#define CHUNK_BYTES (CHUNK * DIM * 2)
#define SLOT_BYTES (KEYS * DIM * 2)
#define QUERY_LINES ((POSITIONS * GROUP + LINES - 1) / LINES * LINES)
#define QUERY_HALF_BYTES (QUERY_LINES * 128)  // 64 dimensions of a tile of queries
#define READERS 2                             // warpgroups

__device__ __forceinline__ void fetch_queries(u32 to, const Map* map, int half, int head, int position, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(half), "r"(head), "r"(position)
      : "memory");
}
__device__ __forceinline__ void fetch_cells(u32 to, const Map* map, int cell, int head, int run, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %3, %4, %5, %6}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(head * 2), "r"(cell / LINES),
      "r"(run) : "memory");
}
__device__ __forceinline__ void load_tiles(u32 (&to)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ float power(float x) {  // of two
  float found;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
}
__device__ __forceinline__ float across(float x, int lanes) { return __shfl_xor_sync(~0u, x, lanes); }

// Sums of 64 rows of registers, by lines of shared memory; see nvrtc.py.
// void score(float (&sums)[64], const u32 (&rows)[4], u64 keys, int is_sum)      lines are columns of the sums
// void weigh(float (&sums)[64], const u32 (&rows)[4], u64 values, int is_sum)    lines are what is summed over
// multiply

// A descriptor for the tensor cores: address, distance from 64 columns to the next (of values only), from
// eight lines to the next, and the swizzle of lines.
__device__ __forceinline__ u64 descriptor(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | (HALF_BYTES >> 4) << 16 | (u64)(LINES_BYTES >> 4) << 32 | 1ull << 62;
}
__device__ __forceinline__ void in_order() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void pin(float (&sums)[64]) {  // neither read before nor written after
#pragma unroll
  for (int i = 0; i < 64; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int LEFT> __device__ __forceinline__ void finish(float (&sums)[64]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
  pin(sums);
}
__device__ __forceinline__ void join(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void signal(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Transposes four words of four adjacent threads, so that each has the words of one column.
__device__ __forceinline__ void turn_words(u32 (&word)[4], int lane) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(~0u, lane & 1 ? word[i] : word[i + 1], 1);
    if (lane & 1) word[i] = got; else word[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 got = __shfl_xor_sync(~0u, lane & 2 ? word[i] : word[i + 2], 2);
    if (lane & 2) word[i] = got; else word[i + 2] = got;
  }
}

struct Slots {  // of a circle
  int at, parity;
  __device__ __forceinline__ void next() {
    if (++at == SLOTS) at = 0, parity ^= 1;
  }
};

// An item is a tile of queries: its first pair in the batch, the same in its sequence, how many there are, and its row.
// `turns` counts units that were drawn, and programs that have ended; the last one clears both. All have waited for the
// kernel in front before the next one may start, which may run beside this one: it reads what that has written, without
// a wait.
extern "C" __global__ void __launch_bounds__((READERS + 1) * 128, 1)
    tiled(const __grid_constant__ Map store, const __grid_constant__ Map query, const int4* items, const int* count,
          int* turns, const int* table, u16* out, int table_stride, int layers_per_block, int index, int window,
          float scale) {
  extern __shared__ char memory[];
  __shared__ u64 barriers[2 * SLOTS + 2];
  __shared__ int4 shown;  // an item, with a head of keys instead of its row; without pairs at the end
  const u32 queries = (place(memory) + 1023) & ~1023u, slots = queries + 2 * QUERY_HALF_BYTES;
  const u32 full = place(barriers), empty = full + 8 * SLOTS, asked = empty + 8 * SLOTS, taken = asked + 8;
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < SLOTS; slot++) {
      barrier_init(full + 8 * slot, 1);
      barrier_init(empty + 8 * slot, READERS);
    }
    barrier_init(asked, 1);
    barrier_init(taken, READERS * 4);
    barriers_ready_for_copies();
  }
  __syncthreads();
  wait_for_front();
  start_next();

  if (group == READERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread >= 32) return;
    const int tiles = *count, units = tiles * KV_HEADS;
    Slots slot = {0, 1};  // of a round before the first, so that slots are empty at the start
    int parity = 1;
    for (int unit = blockIdx.x; unit < units; parity ^= 1) {
      const int4 item = items[unit % tiles];
      const int head = unit / tiles;
      int next = 0;
      if (lane == 0) next = gridDim.x + atomicAdd(turns, 1);
      const int stop = (item.y + item.z - 1) / GROUP + 1, seen = window ? max(item.y / GROUP - window + 1, 0) : 0;
      const int first = seen / KEYS, last = (stop - 1) / KEYS;
      const int* blocks = table + (u64)item.w * table_stride;
      const auto block_of = [&](int tile) {  // of the chunk that this lane fetches
        const int cell = tile * KEYS + lane * CHUNK;
        // Blocks in front of the window may be others' by now. Outside of the store there are zeros.
        return lane >= CHUNKS || cell >= stop || cell + CHUNK <= seen ? -1 : blocks[cell / BLOCK];
      };
      int block = block_of(first), before = -1;
      for (int tile = first; tile <= last + 1; tile++) {
        const int ahead = block_of(tile + 1);
#pragma unroll
        for (int is_value = 0; is_value < 2; is_value++) {  // keys of this tile, values of the one before
          const int start = (tile - is_value) * KEYS;
          if (is_value ? tile == first : tile > last) continue;
          const int chunks = min((stop - start + CHUNK - 1) / CHUNK, CHUNKS);
          barrier_wait(empty + 8 * slot.at, slot.parity);
          if (lane == 0) barrier_expect(full + 8 * slot.at, chunks * CHUNK_BYTES);
          __syncwarp();
          if (lane < chunks)
            fetch_cells(slots + slot.at * SLOT_BYTES + lane * CHUNK_BYTES, &store, (start + lane * CHUNK) % BLOCK,
                        head + is_value * KV_HEADS, (is_value ? before : block) * layers_per_block + index,
                        full + 8 * slot.at);
          __syncwarp();
          slot.next();
        }
        if (tile == first) {
          barrier_wait(taken, parity);
          __syncwarp();  // no lane still waits when the next parity comes
          if (lane == 0) {
            shown = make_int4(item.x, item.y, item.z, head);
            barrier_expect(asked, 2 * POSITIONS * GROUP * 128);
            fetch_queries(queries, &query, 0, head * GROUP, item.x / GROUP, asked);
            fetch_queries(queries + QUERY_HALF_BYTES, &query, 1, head * GROUP, item.x / GROUP, asked);
          }
        }
        before = block;
        block = ahead;
      }
      unit = __shfl_sync(~0u, next, 0);
    }
    barrier_wait(taken, parity);
    if (lane == 0) {
      shown = make_int4(0, 0, 0, 0);
      barrier_arrive(asked);
      if (atomicAdd(turns + 1, 1) == gridDim.x - 1) turns[0] = turns[1] = 0;
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int mine = group * 64 + thread / 32 * 16 + lane / 4;  // the pair of half of the sums; the other is 8 further
  const float log2_scale = scale * 1.4426950408889634f;       // exp2 is cheaper than exp
  Slots slot = {0, 0};
  if (group) signal(3, 256);  // the first warpgroup begins
  for (int parity = 0;; parity ^= 1) {
    u32 q[DIM / 16][4], p[KEYS / 16][4];
    float found[DIM / 2], scores[KEYS / 2], peak[2] = {-INFINITY, -INFINITY}, weight[2] = {0.f, 0.f}, less[2];
    bool grows = false;
    barrier_wait(asked, parity);
    const int4 item = shown;
    if (!item.z) break;
    const int line = item.x % GROUP + group * 64 + thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
      load_tiles(q[k], queries + k / 4 * QUERY_HALF_BYTES + line * 128 + ((k % 4 * 2 + lane / 16) ^ (line & 7)) * 16);
    __syncwarp();
    if (lane == 0) barrier_arrive(taken);

    const int stop = (item.y + item.z - 1) / GROUP + 1;
    const int first = window ? max(item.y / GROUP - window + 1, 0) / KEYS : 0, last = (stop - 1) / KEYS;
    const int lowest = (item.y + group * 64) / GROUP, highest = (item.y + group * 64 + 63) / GROUP;

    const auto score_all = [&](u32 at) {
#pragma unroll
      for (int k = 0; k < DIM / 16; k++) score(scores, q[k], descriptor(at + k / 4 * HALF_BYTES) + k % 4 * 2, k > 0);
      commit();
    };
    const auto weigh_all = [&](u32 at, int is_sum) {
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++) weigh(found, p[k], descriptor(at + k * 2 * LINES_BYTES), is_sum || k > 0);
      commit();
    };
    const auto leave = [&](int at) {
      if (thread == 0) barrier_arrive(empty + 8 * at);
    };
    const auto soften = [&](int tile) {  // scores become weights
      const int start = tile * KEYS + lane % 4 * 2;
      if (tile * KEYS + KEYS > lowest + 1 || (window && tile * KEYS <= highest - window)) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
          const int column = start + i / 4 * 8 + i % 2, position = (item.y + mine + (i & 2) * 4) / GROUP;
          if (column > position || (window && column <= position - window)) scores[i] = -INFINITY;
        }
      }
      float high[2];
#pragma unroll
      for (int row = 0; row < 2; row++) {
        high[row] = peak[row];
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 4) high[row] = fmaxf(high[row], fmaxf(scores[i + row * 2], scores[i + row * 2 + 1]));
        high[row] = fmaxf(high[row], across(high[row], 1));
        high[row] = fmaxf(high[row], across(high[row], 2));
      }
      // Weights up to 256 times too large do no harm: all of a row are. Each row decides for itself, so that its sums do not
      // depend on other rows; those behind the last pair read what earlier tiles left.
      const bool over[2] = {(high[0] - peak[0]) * log2_scale > 8.f, (high[1] - peak[1]) * log2_scale > 8.f};
      grows = __any_sync(~0u, over[0] || over[1]);
      if (grows)
#pragma unroll
        for (int row = 0; row < 2; row++) {
          less[row] = over[row] ? power((peak[row] - high[row]) * log2_scale) : 1.f;
          peak[row] = over[row] ? high[row] : peak[row];
          weight[row] *= less[row];
        }
#pragma unroll
      for (int row = 0; row < 2; row++) {
        const float base = peak[row] == -INFINITY ? 0.f : peak[row] * log2_scale;
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 4) {
          scores[i + row * 2] = power(scores[i + row * 2] * log2_scale - base);
          scores[i + row * 2 + 1] = power(scores[i + row * 2 + 1] * log2_scale - base);
        }
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 4) sum += scores[i + row * 2] + scores[i + row * 2 + 1];
        weight[row] += sum;
      }
      pin(scores);  // or the assembler waits for the sums of values first
    };
    const auto pack = [&]() {
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[k][i] = pair(scores[k * 8 + i * 2], scores[k * 8 + i * 2 + 1]);
    };

    barrier_wait(full + 8 * slot.at, slot.parity);
    in_order();
    score_all(slots + slot.at * SLOT_BYTES);
    finish<0>(scores);
    leave(slot.at);
    slot.next();
    soften(first);
    pack();
    barrier_wait(full + 8 * slot.at, slot.parity);
    for (int tile = first + 1; tile <= last; tile++) {
      const int keys = slot.at;
      join(3 + group, 256);
      in_order();
      score_all(slots + slot.at * SLOT_BYTES);
      slot.next();
      barrier_wait(full + 8 * slot.at, slot.parity);
      weigh_all(slots + slot.at * SLOT_BYTES, tile > first + 1);
      signal(4 - group, 256);
      finish<1>(scores);
      leave(keys);
      soften(tile);
      const int values = slot.at;
      slot.next();
      barrier_wait(full + 8 * slot.at, slot.parity);
      finish<0>(found);
      leave(values);
      if (grows)
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) found[i] *= less[i / 2 % 2];
      pack();
    }
    const u32 values = slots + slot.at * SLOT_BYTES;
    if (stop % KEYS) {  // cells of earlier owners may hold NaN, which a weight of zero does not hide
      for (int i = stop % KEYS * 16 + thread; i < KEYS * 16; i += 128) {
        const u32 at = values + i / 16 / LINES * LINES_BYTES + i / 8 % 2 * HALF_BYTES + i / 16 % LINES * 128 + i % 8 * 16;
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      join(1 + group, 128);
    }
    in_order();
    weigh_all(values, last > first);
    finish<0>(found);
    leave(slot.at);
    slot.next();

#pragma unroll
    for (int row = 0; row < 2; row++) {
      float all = weight[row] + across(weight[row], 1);
      all += across(all, 2);
      const float one = 1.f / all;
      const int own = mine + row * 8, at = item.x + own;
      u16* to = out + ((u64)(at / GROUP) * (KV_HEADS * GROUP) + item.w * GROUP + at % GROUP) * DIM;
#pragma unroll
      for (int d = 0; d < DIM / 8; d += 4) {
        u32 word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) word[i] = pair(found[(d + i) * 4 + row * 2] * one, found[(d + i) * 4 + row * 2 + 1] * one);
        turn_words(word, lane);
        if (own < item.z)
          *(uint4*)(to + (d + lane % 4) * 8) = make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }
}
