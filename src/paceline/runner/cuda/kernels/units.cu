// The common part of kernels that multiply few rows by weights in registers: the instructions, and rows in shared memory.

#define INT4 0  // codes of 4 bits in panels, see int4_panels.py
#define BF16 1
#define FP8 2
#define PERMUTED (FORM == FP8)
#define BUFFERS 4
#define THREADS (WARPS * 32 + 32)
#define AT_ONCE (WARPS < 8 ? 3 : 1)  // eights of inputs that a thread reads before it uses them
#define PAD 8  // numbers between rows in shared memory, so that lanes read from different banks

__device__ __forceinline__ void four_words(const char* from, u32* to) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from));
}

// sums[16 outputs, 8 columns] += weights[16, 16] by columns[16, 8]. A lane has outputs lane / 4 and 8 more, and columns
// lane % 4 * 2 and the next one.
__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&weights)[4], u32 first, u32 second) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "r"(first), "r"(second));
}

// Pairs of bf16, times others.
__device__ __forceinline__ u32 product(u32 both, u32 by) {
  u32 found;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(found) : "r"(both), "r"(by), "r"(0x80008000));
  return found;
}

// Two codes of fp8, the upper bytes of 16 bits each, as bf16: the exponents differ by 120.
__device__ __forceinline__ u32 of_fp8(u32 word) {
  return product((word >> 4 & 0x07f007f0) | (word & 0x80008000), 0x7b807b80);
}

// Copy rows to shared memory by so many threads, times the factor. With a norm, also the squares of each row, by warps. If
// permuted, four inputs are in the order in which codes are decoded: 0, 2, 1, 3.
__device__ __forceinline__ void fetch_rows(u16* to, float (*squares)[WARPS + 1], const u16* x, const float* factor, int rows,
                                           int inputs, int threads) {
  for (int row = 0; row < rows; row++) {
    const u16* from = x + (u64)row * inputs;
    float sum = 0.f;
    for (int begin = threadIdx.x * 8; begin < inputs; begin += threads * 8 * AT_ONCE) {
      uint4 given[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const int i = begin + k * threads * 8;
        if (i < inputs) given[k] = *reinterpret_cast<const uint4*>(from + i);
      }
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const int i = begin + k * threads * 8;
        if (i >= inputs) break;
        u32 parts[4] = {given[k].x, given[k].y, given[k].z, given[k].w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float first = low(parts[j]), second = high(parts[j]);
          if (NORMED) sum += first * first + second * second;
          if (FACTORED) parts[j] = pair(first * __ldg(factor + i + 2 * j), second * __ldg(factor + i + 2 * j + 1));
        }
        if (PERMUTED)
#pragma unroll
          for (int j = 0; j < 4; j += 2) {
            const u32 first = parts[j], second = parts[j + 1];
            parts[j] = __byte_perm(first, second, 0x5410), parts[j + 1] = __byte_perm(first, second, 0x7632);
          }
        *reinterpret_cast<uint4*>(to + row * (inputs + PAD) + i) = uint4{parts[0], parts[1], parts[2], parts[3]};
      }
    }
    if (NORMED) {
#pragma unroll
      for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
      if (threadIdx.x % 32 == 0) squares[row][threadIdx.x / 32] = sum;
    }
  }
}
