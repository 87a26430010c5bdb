// Attention of rows with more than one position: tiles of queries against tiles of keys, on tensor cores.
//
//   query     a tile is 128 pairs of a position and one of the GROUP queries that share keys; positions outermost
//   keys      tiles of 128, in chunks of 16 cells that are adjacent in the store
//
// Multiprocessors take units (a tile of queries, a head of keys) in turn, those with the most keys first. Two warpgroups
// have 64 pairs each; a warp of a third one brings queries, keys and values into memory, in the order in which they are
// needed. While the matrix units sum values by the weights of one tile, weights of the next are made of its scores:
//
//   keys 0 | keys 1, values 0 | keys 2, values 1 | ... | values n
//
// Set at compilation: KV_HEADS, GROUP, SLOTS (tiles of keys or values in memory).

#define DIM 128
#define PAIRS 128
#define TILE (PAIRS / GROUP)  // positions
#define KEYS 128
#define CHUNK 16
#define HALF_BYTES (KEYS * 128)  // 64 dimensions of a tile: lines of 128 bytes, swizzled so that eight can be read at once
#define SLOT_BYTES (2 * HALF_BYTES)
#define READERS 2  // warpgroups

__device__ __forceinline__ void fetch_queries(u32 to, const Map* map, int half, int head, int position, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(half), "r"(head), "r"(position)
      : "memory");
}
__device__ __forceinline__ void fetch_cells(u32 to, const Map* map, int cell, int half, int head, int run, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(cell), "r"(half), "r"(head),
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

// Sums of 64 rows of registers, by lines of shared memory; see instructions.py.
// void score(float (&sums)[64], const u32 (&rows)[4], u64 keys, int is_sum)      lines are columns of the sums
// void weigh(float (&sums)[64], const u32 (&rows)[4], u64 values, int is_sum)    lines are what is summed over
// multiply

// A descriptor for the tensor cores: address, distance from 64 columns to the next (of values only), from
// eight lines to the next, and the swizzle of lines.
__device__ __forceinline__ u64 descriptor(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)(HALF_BYTES >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
__device__ __forceinline__ void in_order() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void finish(float (&sums)[64]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
  for (int i = 0; i < 64; i++) asm volatile("" : "+f"(sums[i])::"memory");  // not read before
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

// An item is a tile of queries: its first position in the batch, its position in its sequence, how many there
// are, and its row. They have waited for the kernel in front before the next one may start, which may run beside this
// one: it reads what that has written, without a wait.
extern "C" __global__ void __launch_bounds__((READERS + 1) * 128, 1)
    tiled(const __grid_constant__ Map store, const __grid_constant__ Map query, const int4* items, const int* count,
          const int* table, u16* out, int table_stride, int block_size, int layers_per_block, int index,
          int window, float scale) {
  extern __shared__ char memory[];
  __shared__ u64 barriers[2 * SLOTS + 2];
  __shared__ int4 shown;
  const u32 queries = (place(memory) + 1023) & ~1023u, slots = queries + SLOT_BYTES;
  const u32 full = place(barriers), empty = full + 8 * SLOTS, asked = empty + 8 * SLOTS, taken = asked + 8;
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < SLOTS; slot++) {
      barrier_init(full + 8 * slot, 1);
      barrier_init(empty + 8 * slot, READERS);
    }
    barrier_init(asked, 1);
    barrier_init(taken, READERS * 4);
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  wait_for_front();
  asm volatile("griddepcontrol.launch_dependents;");
  const int units = *count * KV_HEADS;

  if (group == READERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread >= 32) return;
    const int chunk = lane % 8, half = lane / 8;  // what a lane fetches of a tile; half of them do
    Slots slot = {0, 1};                          // of a round before the first, so that slots are empty at the start
    int parity = 1;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x, parity ^= 1) {
      const int4 item = items[unit / KV_HEADS];
      const int head = unit % KV_HEADS, stop = item.y + item.z;
      const int seen = window ? max(item.y - window + 1, 0) : 0;
      const int first = seen / KEYS, last = (stop - 1) / KEYS;
      const int* blocks = table + (u64)item.w * table_stride;
      barrier_wait(taken, parity);
      __syncwarp();  // no lane still waits when the next parity comes
      if (lane == 0) {
        shown = item;
        barrier_expect(asked, 2 * TILE * GROUP * 128);
        fetch_queries(queries, &query, 0, head * GROUP, item.x, asked);
        fetch_queries(queries + HALF_BYTES, &query, 1, head * GROUP, item.x, asked);
      }
      int block = 0, before = 0;
      for (int tile = first; tile <= last + 1; tile++) {
        const int cell = tile * KEYS + chunk * CHUNK;
        // Blocks in front of the window may be others' by now. Outside of the store there are zeros.
        block = cell >= stop ? 0 : cell + CHUNK <= seen ? -1 : blocks[cell / block_size];
#pragma unroll
        for (int is_value = 0; is_value < 2; is_value++) {  // keys of this tile, values of the one before
          const int which = tile - is_value, start = which * KEYS;
          if (which < first || which > last) continue;
          const int chunks = min((stop - start + CHUNK - 1) / CHUNK, KEYS / CHUNK);
          barrier_wait(empty + 8 * slot.at, slot.parity);
          if (lane == 0) barrier_expect(full + 8 * slot.at, chunks * CHUNK * DIM * 2);
          __syncwarp();
          if (half < 2 && chunk < chunks)
            fetch_cells(slots + slot.at * SLOT_BYTES + half * HALF_BYTES + chunk * (CHUNK * 128), &store,
                        (start + chunk * CHUNK) % block_size, half, head + is_value * KV_HEADS,
                        (is_value ? before : block) * layers_per_block + index, full + 8 * slot.at);
          slot.next();
        }
        before = block;
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int mine = group * 64 + thread / 32 * 16 + lane / 4;  // the pair of half of the sums; the other is 8 further
  const float log2_scale = scale * 1.4426950408889634f;       // exp2 is cheaper than exp
  Slots slot = {0, 0};
  int parity = 0;
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x, parity ^= 1) {
    u32 q[DIM / 16][4], p[KEYS / 16][4];
    float found[64], scores[64], peak[2] = {-INFINITY, -INFINITY}, weight[2] = {0.f, 0.f}, less[2];
    barrier_wait(asked, parity);
    const int4 item = shown;
    const int line = group * 64 + thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
      load_tiles(q[k], queries + k / 4 * HALF_BYTES + line * 128 + ((k % 4 * 2 + lane / 16) ^ (line & 7)) * 16);
    __syncwarp();
    if (lane == 0) barrier_arrive(taken);

    const int stop = item.y + item.z;
    const int first = window ? max(item.y - window + 1, 0) / KEYS : 0, last = (stop - 1) / KEYS;
    const int lowest = item.y + group * 64 / GROUP, highest = item.y + (group * 64 + 63) / GROUP;

    const auto score_all = [&](u32 at) {
#pragma unroll
      for (int k = 0; k < DIM / 16; k++) score(scores, q[k], descriptor(at + k / 4 * HALF_BYTES) + k % 4 * 2, k > 0);
      commit();
    };
    const auto weigh_all = [&](u32 at, int is_sum) {
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++) weigh(found, p[k], descriptor(at + k * 16 * 128), is_sum || k > 0);
      commit();
    };
    const auto leave = [&](int at) {
      if (thread == 0) barrier_arrive(empty + 8 * at);
    };
    const auto soften = [&](int tile) {  // scores become weights
      const int start = tile * KEYS + lane % 4 * 2;
      if (tile * KEYS + KEYS > lowest + 1 || (window && tile * KEYS <= highest - window)) {
#pragma unroll
        for (int i = 0; i < 64; i++) {
          const int column = start + i / 4 * 8 + i % 2, position = item.y + (mine + (i & 2) * 4) / GROUP;
          if (column > position || (window && column <= position - window)) scores[i] = -INFINITY;
        }
      }
#pragma unroll
      for (int row = 0; row < 2; row++) {
        float high = peak[row];
#pragma unroll
        for (int i = 0; i < 64; i += 4) high = fmaxf(high, fmaxf(scores[i + row * 2], scores[i + row * 2 + 1]));
        high = fmaxf(high, across(high, 1));
        high = fmaxf(high, across(high, 2));
        const float base = high == -INFINITY ? 0.f : high * log2_scale;  // -inf - -inf is NaN
        less[row] = power(peak[row] * log2_scale - base);
        peak[row] = high;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 64; i += 4) {
          sum += scores[i + row * 2] = power(scores[i + row * 2] * log2_scale - base);
          sum += scores[i + row * 2 + 1] = power(scores[i + row * 2 + 1] * log2_scale - base);
        }
        weight[row] = weight[row] * less[row] + sum;
      }
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
    for (int tile = first + 1; tile <= last; tile++) {
      const int keys = slot.at;
      barrier_wait(full + 8 * slot.at, slot.parity);
      in_order();
      score_all(slots + slot.at * SLOT_BYTES);
      slot.next();
      barrier_wait(full + 8 * slot.at, slot.parity);
      weigh_all(slots + slot.at * SLOT_BYTES, tile > first + 1);
      finish<1>(scores);
      leave(keys);
      soften(tile);
      finish<0>(found);
      leave(slot.at);
      slot.next();
#pragma unroll
      for (int i = 0; i < 64; i++) found[i] *= less[i / 2 % 2];
      pack();
    }
    const u32 values = slots + slot.at * SLOT_BYTES;
    barrier_wait(full + 8 * slot.at, slot.parity);
    if (stop % KEYS) {  // cells of earlier owners may hold NaN, which a weight of zero does not hide
      for (int i = stop % KEYS * 8 + thread; i < KEYS * 8; i += 128)
#pragma unroll
        for (int half = 0; half < 2; half++)
          asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(values + half * HALF_BYTES + i * 16), "r"(0) : "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      if (group) asm volatile("bar.sync 1, 128;" ::: "memory"); else asm volatile("bar.sync 2, 128;" ::: "memory");
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
      const int own = mine + row * 8, position = own / GROUP;
      u16* to = out + ((u64)(item.x + position) * (KV_HEADS * GROUP) + unit % KV_HEADS * GROUP + own % GROUP) * DIM;
#pragma unroll
      for (int d = 0; d < DIM / 8; d += 4) {
        u32 word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) word[i] = pair(found[(d + i) * 4 + row * 2] * one, found[(d + i) * 4 + row * 2 + 1] * one);
        turn_words(word, lane);
        if (position < item.z)
          *(uint4*)(to + (d + lane % 4) * 8) = make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }
}
