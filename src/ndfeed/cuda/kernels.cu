// The source of kernels.ptx: `python tests/cuda/compile_kernels.py` makes it, with NVRTC.
//
// gather copies rows from any places, of the host's memory or of the device's. The bus between them
// has a long round trip: what counts is how much is under way at a time, not how many processors
// ask. A thread has four words under way, and few blocks keep the bus full.
//
// permute is ndfeed.order.permutation for lengths of one kind, step by step as it is written there.

typedef unsigned long long u64;
typedef unsigned int u32;

#define AT_A_TIME 4

// Row i, of `size` bytes, lies at base + places[i] * pitch, and goes to out + i * size.
template <typename Word>
__device__ __forceinline__ void gather(const u64* places, u64 base, u64 pitch, char* out,
                                       u64 count, u64 size) {
    u32 words = size / sizeof(Word);
    u64 total = count * words;
    u64 tile = (u64)blockDim.x * AT_A_TIME;
    for (u64 first = blockIdx.x * tile; first < total; first += gridDim.x * tile) {
        Word held[AT_A_TIME];
        u64 first_row = first / words;
        u32 skipped = first - first_row * words;
#pragma unroll
        for (int k = 0; k < AT_A_TIME; k++) {
            u32 at = threadIdx.x + k * blockDim.x;
            if (first + at < total) {
                u32 row = (skipped + at) / words;
                u32 word = (skipped + at) - row * words;
                const Word* from = (const Word*)(base + places[first_row + row] * pitch);
                held[k] = from[word];
            }
        }
#pragma unroll
        for (int k = 0; k < AT_A_TIME; k++) {
            u32 at = threadIdx.x + k * blockDim.x;
            if (first + at < total) ((Word*)out)[first + at] = held[k];
        }
    }
}

#define GATHER(name, Word)                                                                       \
    extern "C" __global__ void __launch_bounds__(1024)                                           \
        name(const u64* places, u64 base, u64 pitch, char* out, u64 count, u64 size) {           \
        gather<Word>(places, base, pitch, out, count, size);                                     \
    }

GATHER(gather_16, uint4)
GATHER(gather_8, u64)

// The same for rows of any size at any address, in words of eight bytes of what is written. Each is
// put together from the words that it lies in, of two rows where it reaches from one into the next.
// No word is read that has none of the bytes: it may not be mapped.
__device__ __forceinline__ u64 bytes_at(u64 address, u32 count) {
    u64 word = address & ~7ull;
    u32 skipped = (u32)(address & 7);
    u64 found = *(const u64*)word >> (8 * skipped);
    if (skipped + count > 8) found |= *(const u64*)(word + 8) << (64 - 8 * skipped);
    return count < 8 ? found & ((1ull << (8 * count)) - 1) : found;
}

extern "C" __global__ void __launch_bounds__(1024)
    gather_any(const u64* places, u64 base, u64 pitch, char* out, u64 count, u64 size) {
    u64 total = count * size;
    u64 tile = (u64)blockDim.x * AT_A_TIME * 8;
    u32 length = (u32)size;
    for (u64 first = blockIdx.x * tile; first < total; first += gridDim.x * tile) {
        u64 held[AT_A_TIME];
        u64 first_row = first / size;
        u32 skipped = first - first_row * size;
#pragma unroll
        for (int k = 0; k < AT_A_TIME; k++) {
            u32 at = (threadIdx.x + k * blockDim.x) * 8;
            if (first + at + 8 <= total) {
                u32 row = (skipped + at) / length;
                u32 byte = (skipped + at) - row * length;
                u64 from = base + places[first_row + row] * pitch + byte;
                u32 here = min(length - byte, 8u);
                u64 made = bytes_at(from, here);
                for (u32 more; here < 8; here += more) {
                    row++;
                    more = min(length, 8 - here);
                    from = base + places[first_row + row] * pitch;
                    made |= bytes_at(from, more) << (8 * here);
                }
                held[k] = made;
            }
        }
#pragma unroll
        for (int k = 0; k < AT_A_TIME; k++) {
            u32 at = (threadIdx.x + k * blockDim.x) * 8;
            if (first + at + 8 <= total) {
                *(u64*)(out + first + at) = held[k];
            } else {
                for (u64 end = first + at; end < total && end < first + at + 8; end++) {
                    u64 row = end / size;
                    const char* from = (const char*)(base + places[row] * pitch + end - row * size);
                    out[end] = *from;
                }
            }
        }
    }
}

// Each of `rows`, a position of n, becomes the row that it goes to; a round has an odd factor.
template <typename Word>
__device__ __forceinline__ void permute(u64* rows, u64 count, u64 n, u32 low, u64 high, u64 key,
                                        u64 turned, const u64* factors, u32 rounds) {
    const u32 bits = sizeof(Word) * 8, half = bits / 2, top = bits - low;
    const Word mask = ((Word)1 << low) - 1, values = (Word)high;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (u64)gridDim.x * blockDim.x) {
        Word at = (Word)rows[i];
        do {
            Word big = at >> low, small = at & mask, now = (Word)key;
            for (u32 r = 0; r < rounds; r++) {
                Word factor = (Word)factors[r];
                Word hashed = (r % 2 ? small : big) * factor + now;
                hashed *= hashed;
                if (r % 2 == 0) {
                    small = (small + (hashed >> top)) & mask;
                } else {
                    big += ((hashed >> half) * values) >> half;
                    Word less = big - values;
                    big = less < big ? less : big;
                }
                now = now * factor + (Word)turned;
            }
            at = (big << low) | small;
        } while (at >= (Word)n);
        rows[i] = at;
    }
}

#define PERMUTE(name, Word)                                                                       \
    extern "C" __global__ void name(u64* rows, u64 count, u64 n, u64 low, u64 high, u64 key,      \
                                    u64 turned, const u64* factors, u64 rounds) {                 \
        permute<Word>(rows, count, n, low, high, key, turned, factors, rounds);                   \
    }

PERMUTE(permute_32, u32)
PERMUTE(permute_64, u64)
