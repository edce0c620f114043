// Kernels of cuda_program.py. nvcc turns this file into kernels.ptx (regenerate.py); the tests' sham driver
// compiles the very same text as C and runs it on the CPU, so it keeps to what both languages share.
//
// A stream of bytes is made from a seed alone, on each GPU by itself: nothing is moved to know what is right.
//   pattern byte   odd, 0x01..0x7f
//   poison byte    its complement: even, 0x80..0xfe
// so no byte of a poisoned destination equals the pattern, and zero is neither of the two.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__
#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define EACH(i, n)                                                                                        \
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (u64)gridDim.x * blockDim.x)
#define ADD(address, value) atomicAdd((address), (value))
#define LEAST(address, value) atomicMin((address), (value))
#define MOST(address, value) atomicMax((address), (value))
typedef uint4 block16;
#else
#define DEVICE static inline
#define KERNEL void
#define EACH(i, n) for (u64 i = 0; i < (n); i++)
#define ADD(address, value) (*(address) += (value))
#define LEAST(address, value) (*(address) = *(address) < (value) ? *(address) : (value))
#define MOST(address, value) (*(address) = *(address) > (value) ? *(address) : (value))
typedef struct { u32 x, y, z, w; } block16;
#endif

DEVICE u32 scatter(u32 index, u32 seed)
{
    u32 x = (index + 0x7f4a7c15u) * 0x9e3779b1u + seed * 0x85ebca77u;
    x ^= x >> 15;
    x *= 0xd168aaadu;
    x ^= x >> 15;
    x *= 0xaf723597u;
    x ^= x >> 15;
    return x;
}

DEVICE u8 pattern_byte(u64 position, u32 seed)
{
    u32 word = scatter((u32)(position >> 2), seed ^ (u32)(position >> 34));
    return (u8)(((word >> ((position & 3) * 8)) & 0x7e) | 1);
}

// Write n bytes of the stream from position `from` on; complemented where poison is not 0.
KERNEL fill_bytes(u8 *to, u64 n, u64 from, u32 seed, u32 poison)
{
    u8 flip = poison ? 0xff : 0;
    EACH (i, n)
        to[i] = pattern_byte(from + i, seed) ^ flip;
}

// Copy n bytes. Aligned buffers go 16 bytes at a time, four loads in flight in each thread; the rest byte by byte.
KERNEL copy_bytes(u8 *to, const u8 *from, u64 n)
{
    u64 done = 0;
    if ((((u64)to | (u64)from) & 15) == 0) {
        block16 *to16 = (block16 *)to;
        const block16 *from16 = (const block16 *)from;
        u64 blocks = n >> 4;
#ifdef __CUDACC__
        u64 step = (u64)gridDim.x * blockDim.x;
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
        for (; i + 3 * step < blocks; i += 4 * step) {
            block16 a = from16[i], b = from16[i + step], c = from16[i + 2 * step], d = from16[i + 3 * step];
            to16[i] = a;
            to16[i + step] = b;
            to16[i + 2 * step] = c;
            to16[i + 3 * step] = d;
        }
        for (; i < blocks; i += step)
            to16[i] = from16[i];
#else
        EACH (i, blocks)
            to16[i] = from16[i];
#endif
        done = blocks << 4;
    }
    EACH (j, n - done)
        to[done + j] = from[done + j];
}

// Compare n bytes with the stream. found[6]: wrong, still poison, zero, first wrong index, last wrong index, spare.
// With poison not 0 the bytes must still be poison (the guard zones around a destination).
KERNEL check_bytes(const u8 *at, u64 n, u64 from, u32 seed, u32 poison, u64 *found)
{
    u8 flip = poison ? 0xff : 0;
    u64 wrong = 0, kept = 0, zero = 0, first = ~0ull, last = 0;
    EACH (i, n) {
        u8 got = at[i], right = pattern_byte(from + i, seed) ^ flip;
        if (got != right) {
            wrong += 1;
            kept += (got ^ right) == 0xff;
            zero += got == 0;
            first = i < first ? i : first;
            last = i > last ? i : last;
        }
    }
    if (wrong) {
        ADD(found, wrong);
        ADD(found + 1, kept);
        ADD(found + 2, zero);
        LEAST(found + 3, first);
        MOST(found + 4, last);
    }
}

// What a rank puts into an all-reduce. Every partial sum is exact in its type, in any order, for 16 ranks:
// type 0 int32 (wraps), 1 float32 (integers below 2^20), 2 bfloat16 (integers 1 to 15; the sum stays below 256).
DEVICE u32 contribution(u64 index, u32 rank, u32 seed, u32 type)
{
    u32 x = scatter((u32)index, seed + rank * 0x27d4eb2fu);
    if (type == 1)
        return x & 0xfffff;
    if (type == 2)
        return 1 + x % 15;
    return x;
}

DEVICE u32 float_bits(u32 integer)
{
    union { float f; u32 u; } value;
    value.f = (float)integer;
    return value.u;
}

KERNEL fill_elements(void *to, u64 n, u32 rank, u32 seed, u32 type)
{
    EACH (i, n) {
        u32 x = contribution(i, rank, seed, type);
        if (type == 0)
            ((u32 *)to)[i] = x;
        else if (type == 1)
            ((u32 *)to)[i] = float_bits(x);
        else
            ((unsigned short *)to)[i] = (unsigned short)(float_bits(x) >> 16);
    }
}

// found[6]: wrong elements, of these equal to the rank's own contribution, zero, first wrong index, last, spare.
KERNEL check_elements(const void *at, u64 n, u32 ranks, u32 rank, u32 seed, u32 type, u64 *found)
{
    u64 wrong = 0, own = 0, zero = 0, first = ~0ull, last = 0;
    EACH (i, n) {
        u32 sum = 0, mine = contribution(i, rank, seed, type), got;
        for (u32 r = 0; r < ranks; r++)
            sum += contribution(i, r, seed, type);
        got = type == 2 ? ((const unsigned short *)at)[i] : ((const u32 *)at)[i];
        if (type) {
            sum = float_bits(sum) >> (type == 2 ? 16 : 0);
            mine = float_bits(mine) >> (type == 2 ? 16 : 0);
        }
        if (got != sum) {
            wrong += 1;
            own += got == mine;
            zero += got == 0;
            first = i < first ? i : first;
            last = i > last ? i : last;
        }
    }
    if (wrong) {
        ADD(found, wrong);
        ADD(found + 1, own);
        ADD(found + 2, zero);
        LEAST(found + 3, first);
        MOST(found + 4, last);
    }
}
