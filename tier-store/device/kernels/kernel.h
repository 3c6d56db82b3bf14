// The language of the kernels: C that NVRTC compiles for a GPU, and the C compiler at hand for the processor.
//
// A kernel is a sequence of phases. `THREADS { .. }` is one phase, which runs once for each thread `t` of a block; the
// threads of a block do not see what others write in the same phase. A kernel takes one address, of its parameters.
// Structures are shared with Rust: src/layout.rs declares the same fields, and a test compares sizes and offsets.
#ifndef TERRACE_KERNEL_H
#define TERRACE_KERNEL_H

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define WIDTH 128     // threads of a block
#define LANES 32      // threads that read one tile together
#define TILE 1024     // rows that LANES threads read together: 32 each
#define BATCH 4       // rows of a thread that are read together
#define SPARSE 16     // rows of a thread that are taken wherever they are, at most
#define PAGE_TILES 8  // tiles of a page of a packed column
#define MEASURES 24   // measures of a program, at most
#define DEPTH 16      // conditions that wait for an AND or OR, at most
#define OWN_PLACES 56  // places for groups that each thread has for itself, at most
#define BLOCK_BYTES 8192  // of programs and columns of chunks in the memory of a block, at most

#ifdef __CUDACC_RTC__

#define KERNEL(name, blocks_per_multiprocessor, type) \
    extern "C" __global__ void __launch_bounds__(WIDTH, blocks_per_multiprocessor) name(const type* p)
#define INLINE static __device__ __forceinline__
#define OUTLINE static __device__ __noinline__
// `name` is memory of the block, as much as the launch asked for; at most `most` values.
#define SHARED(type, name, most) extern __shared__ type name[]
#define UNROLL _Pragma("unroll")
#define BLOCK blockIdx.x
#define BLOCKS gridDim.x
#define THREADS for (u32 t = threadIdx.x, once = 1; once; once = 0, __syncthreads())
#define ALIGNED(bytes) __align__(bytes)
// True for all threads of a warp if `condition` holds for one of them: what they do next together.
#define ANY(condition) __any_sync(0xffffffff, condition)
INLINE u32 count_bits(u32 bits) { return __popc(bits); }
// The lowest bit that is set; some bit if none is.
INLINE u32 lowest(u32 bits) { return (__ffs(bits) - 1) & 31; }

// Loads that are predicated, not branched around: a thread has many in flight. Not wanted: 0, and nothing is read.
#define DEFINE_LOAD(name, type, ptx, register, zero) \
    INLINE type name(u64 at, u32 wanted) { \
        type value; \
        asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov." zero " %0, 0; @p ld.global.nc" ptx " %0, [%1]; }" \
            : "=" register(value) : "l"(at), "r"(wanted)); \
        return value; \
    }
DEFINE_LOAD(load_s8, i32, ".s8", "r", "b32")
DEFINE_LOAD(load_u8, i32, ".u8", "r", "b32")
DEFINE_LOAD(load_s16, i32, ".s16", "r", "b32")
DEFINE_LOAD(load_u16, i32, ".u16", "r", "b32")
DEFINE_LOAD(load_s32, i32, ".s32", "r", "b32")
DEFINE_LOAD(load_u32, u32, ".u32", "r", "b32")
DEFINE_LOAD(load_s64, i64, ".s64", "l", "b64")
// Copies words to memory of the block for the threads of a warp, which call this together. Gives where they lie.
INLINE const void* bring_near(const void* from, void* near, u32 words, u32 lane) {
    __syncwarp();
    for (u32 i = lane; i < words; i += LANES) ((u64*)near)[i] = ((const u64*)from)[i];
    __syncwarp();
    return near;
}

INLINE void add(i64* at, i64 value) { atomicAdd((u64*)at, (u64)value); }
INLINE void lower(i64* at, i64 value) { atomicMin(at, value); }
INLINE void raise(i64* at, i64 value) { atomicMax(at, value); }
INLINE void set_bits(u32* at, u32 bits) { atomicOr(at, bits); }
// Adds to memory of the block, where only additions of 32 bits are fast: whoever carries over adds the carry.
INLINE void add_near(i64* at, i64 value) {
    u32* words = (u32*)at;
    u32 low = (u32)value, high = (u32)((u64)value >> 32);
    high += atomicAdd(words, low) + low < low;
    if (high) atomicAdd(words + 1, high);
}
// The 32 bits that begin `shift` bits (below 32) above the lowest of the pair.
INLINE u32 funnel(u32 low, u32 high, u32 shift) { return __funnelshift_r(low, high, shift); }

#else

#define KERNEL(name, blocks_per_multiprocessor, type) void terrace_##name(u32 BLOCK, u32 BLOCKS, const type* p)
#define INLINE static inline __attribute__((always_inline))
#define OUTLINE static __attribute__((noinline))
#define SHARED(type, name, most) type name[most]
#define UNROLL
#define THREADS for (u32 t = 0; t < WIDTH; t++)
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
#define ANY(condition) ((condition) != 0)
INLINE const void* bring_near(const void* from, void* near, u32 words, u32 lane) {
    (void)near, (void)words, (void)lane;
    return from;
}
INLINE u32 count_bits(u32 bits) { return __builtin_popcount(bits); }
INLINE u32 lowest(u32 bits) { return bits ? __builtin_ctz(bits) : 0; }

#define DEFINE_LOAD(name, type, stored) \
    INLINE type name(u64 at, u32 wanted) { return wanted ? *(const stored*)at : 0; }
DEFINE_LOAD(load_s8, i32, i8)
DEFINE_LOAD(load_u8, i32, u8)
DEFINE_LOAD(load_s16, i32, i16)
DEFINE_LOAD(load_u16, i32, u16)
DEFINE_LOAD(load_s32, i32, i32)
DEFINE_LOAD(load_u32, u32, u32)
DEFINE_LOAD(load_s64, i64, i64)

INLINE void add(i64* at, i64 value) { __atomic_fetch_add((u64*)at, (u64)value, __ATOMIC_RELAXED); }
INLINE void lower(i64* at, i64 value) {
    i64 now = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value < now && !__atomic_compare_exchange_n(at, &now, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
INLINE void raise(i64* at, i64 value) {
    i64 now = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value > now && !__atomic_compare_exchange_n(at, &now, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
INLINE void set_bits(u32* at, u32 bits) { __atomic_fetch_or(at, bits, __ATOMIC_RELAXED); }
INLINE void add_near(i64* at, i64 value) { *at = (i64)((u64)*at + (u64)value); }
INLINE u32 funnel(u32 low, u32 high, u32 shift) { return (u32)((((u64)high << 32) | low) >> shift); }

#endif
#endif
