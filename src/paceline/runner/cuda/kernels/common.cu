// The common part of all kernels: barriers of shared memory, and pairs of bfloat16.

#define INFINITY __int_as_float(0x7f800000)  // NVRTC has no header that defines it
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
struct alignas(64) Map { u64 words[16]; };  // a tensor map

__device__ __forceinline__ u32 place(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Barriers of shared memory. They count arrivals and bytes, and flip their parity when all have arrived.

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
// Barriers can be used after the next barrier of the block.
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barriers_ready_for_copies() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}

// Wait until all previous kernels have ended and their results can be read.
__device__ __forceinline__ void wait_for_front() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Let the next kernel start.
__device__ __forceinline__ void start_next() { asm volatile("griddepcontrol.launch_dependents;"); }

__device__ __forceinline__ float low(u32 both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high(u32 both) { return __uint_as_float(both & 0xffff0000); }
__device__ __forceinline__ u32 pair(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ u32 less(u32 both, u32 zeros) {
  u32 found;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(both), "r"(zeros));
  return found;
}
