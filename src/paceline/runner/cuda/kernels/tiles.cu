// Tiles in shared memory that tensor cores read: rows of 128 bytes, swizzled.

__device__ __forceinline__ void fetch_rows(u32 to, const Map* map, int input, int row, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to), "l"(map), "r"(barrier), "r"(input), "r"(row), "l"(policy)
      : "memory");
}

// A descriptor for the tensor cores: address, 1,024 bytes from eight rows to the next, the swizzle.
__device__ __forceinline__ u64 descriptor(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

__device__ __forceinline__ void words_at(u32 at, u32 (&word)[2]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "r"(at) : "memory");
}
__device__ __forceinline__ void words_at(u32 at, u32 (&word)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3]) : "r"(at) : "memory");
}
