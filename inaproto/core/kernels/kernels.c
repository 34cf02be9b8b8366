/* The loops of the accelerator that see packets, compiled. Each is told where things lie; none knows a protocol.

   What they must compute is in the numpy code beside each call of them, byte for byte; the property tests
   compare the two. Plain C without Python's headers: a shared object that ctypes loads, for any Python.

   Which instructions are used is decided when the library is loaded: carry-less multiplication (x86-64; of 64
   bytes at once where there is AVX-512) or the CRC instructions (aarch64) for CRC-32, AVX2 (or AVX-512) and F16C
   for sums; tables and plain loops elsewhere. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#if defined(__clang__) || __GNUC__ >= 9
#define WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,vpclmulqdq,pclmul,sse4.1")))
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define ARM 1
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements and checksums are little-endian here"
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

#ifndef SOURCE
#define SOURCE 0
#endif

u32 kernels_source(void) { return SOURCE; }

static u16 be16(const u8 *p) { return (u16)(p[0] << 8 | p[1]); }
static u32 be32(const u8 *p) { u32 v; memcpy(&v, p, 4); return __builtin_bswap32(v); }

/* ---- CRC-32 (reflected polynomial 0xEDB88320, as zlib's) -------------------------------------------------- */

static u32 table[8][256];
static int fast_crc, fast_sum, halves, wide;

enum { FAST_CRC = 1, FAST_SUM = 2, HAS_HALVES = 4, IS_WIDE = 8 };

#ifdef WIDE
static void start_wide(void);
static void start_headers(void);
#endif

/* Which instructions there are; those of ``without`` are not used. */
int kernels_start(int without) {
    for (u32 byte = 0; byte < 256; byte++) {
        u32 crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        table[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int byte = 0; byte < 256; byte++) {
            u32 crc = table[slice - 1][byte];
            table[slice][byte] = crc >> 8 ^ table[0][crc & 255];
        }
#if X86
    __builtin_cpu_init();
    fast_crc = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    fast_sum = !!__builtin_cpu_supports("avx2");
    halves = fast_sum && __builtin_cpu_supports("f16c");
#ifdef WIDE
    wide = fast_crc && fast_sum && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("vpclmulqdq") && !(without & IS_WIDE);
    start_wide();
    start_headers();
#endif
#elif ARM
    fast_crc = (getauxval(AT_HWCAP) & (1 << 7)) != 0; /* HWCAP_CRC32 */
#endif
    fast_crc = fast_crc && !(without & FAST_CRC);
    fast_sum = fast_sum && !(without & FAST_SUM);
    return (fast_crc ? FAST_CRC : 0) | (fast_sum ? FAST_SUM : 0) | (halves ? HAS_HALVES : 0) | (wide ? IS_WIDE : 0);
}

/* ``crc`` is the register, not inverted, here and below. */
static u32 crc_tables(const u8 *from, size_t n, u32 crc) {
    for (; n >= 8; n -= 8, from += 8) {
        u64 word;
        memcpy(&word, from, 8);
        word ^= crc;
        crc = table[7][word & 255] ^ table[6][word >> 8 & 255] ^ table[5][word >> 16 & 255] ^
              table[4][word >> 24 & 255] ^ table[3][word >> 32 & 255] ^ table[2][word >> 40 & 255] ^
              table[1][word >> 48 & 255] ^ table[0][word >> 56];
    }
    for (; n; n--) crc = crc >> 8 ^ table[0][(crc ^ *from++) & 255];
    return crc;
}

#if X86
#define FOLDING __attribute__((target("pclmul,sse4.1")))

static inline FOLDING __m128i folded(__m128i value, __m128i by, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(value, by, 0x00), high = _mm_clmulepi64_si128(value, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

static inline FOLDING __m128i moved(const u8 *from, u8 *to) {
    __m128i value = _mm_loadu_si128((const __m128i *)from);
    if (to) _mm_storeu_si128((__m128i *)to, value);
    return value;
}

/* 128 bits to the register. */
static inline FOLDING u32 reduced(__m128i a) {
    const __m128i by1 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i low32 = _mm_set_epi32(0, 0, 0, -1), reduce = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    a = _mm_xor_si128(_mm_clmulepi64_si128(a, by1, 0x10), _mm_srli_si128(a, 8));
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low32), reduce, 0x00), _mm_srli_si128(a, 4));
    __m128i t = _mm_clmulepi64_si128(_mm_and_si128(a, low32), barrett, 0x10);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, low32), barrett, 0x00);
    return (u32)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
}

/* Folds 16-byte blocks onto each other by multiplication with powers of x modulo the polynomial, then reduces
   128 bits to 32 (Gopal et al., Intel 2009). ``n`` is at least 16; a rest below 16 is left. */
static inline FOLDING u32 crc_fold(const u8 *from, u8 *to, size_t n, u32 crc) {
    const __m128i by4 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by1 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i a = _mm_xor_si128(moved(from, to), _mm_cvtsi32_si128((int)crc));
    size_t at = 16;
    if (n >= 64) {
        __m128i b = moved(from + 16, to ? to + 16 : to), c = moved(from + 32, to ? to + 32 : to);
        __m128i d = moved(from + 48, to ? to + 48 : to);
        for (at = 64; at + 64 <= n; at += 64) {
            u8 *out = to ? to + at : to;
            a = folded(a, by4, moved(from + at, out));
            b = folded(b, by4, moved(from + at + 16, to ? out + 16 : out));
            c = folded(c, by4, moved(from + at + 32, to ? out + 32 : out));
            d = folded(d, by4, moved(from + at + 48, to ? out + 48 : out));
        }
        a = folded(folded(folded(a, by1, b), by1, c), by1, d);
    }
    for (; at + 16 <= n; at += 16) a = folded(a, by1, moved(from + at, to ? to + at : to));
    return reduced(a);
}

static FOLDING u32 crc_folded(const u8 *from, size_t n, u32 crc) { return crc_fold(from, 0, n, crc); }
static FOLDING u32 copy_folded(const u8 *from, u8 *to, size_t n, u32 crc) { return crc_fold(from, to, n, crc); }
#endif

#ifdef WIDE
enum { WIDE_MIN = 256 };
static __m512i by_2048, by_512, by_lanes; /* factors; of ``by_lanes`` each lane's own, to the last one */

/* x to the power of ``n`` modulo the polynomial, as a factor. */
static u64 power(int n) {
    u32 value = 0x80000000u;
    for (; n; n--) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
    return (u64)value << 1;
}

/* A pair of factors moves 128 bits over ``bits`` bits. */
static void start_wide(void) {
    u64 near[8] = {0}, far[8] = {0}, lanes[8] = {0};
    for (int lane = 0; lane < 4; lane++) {
        near[2 * lane] = power(512 + 32), near[2 * lane + 1] = power(512 - 32);
        far[2 * lane] = power(2048 + 32), far[2 * lane + 1] = power(2048 - 32);
        int bits = 128 * (3 - lane);
        if (bits) lanes[2 * lane] = power(bits + 32), lanes[2 * lane + 1] = power(bits - 32);
    }
    memcpy(&by_512, near, 64), memcpy(&by_2048, far, 64), memcpy(&by_lanes, lanes, 64);
}

static inline WIDE __m512i folded4(__m512i value, __m512i by, __m512i next) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, by, 0x00),
                                     _mm512_clmulepi64_epi128(value, by, 0x11), next, 0x96);
}

static inline WIDE __m512i moved4(const u8 *from, u8 *to) {
    __m512i value = _mm512_loadu_si512(from);
    if (to) _mm512_storeu_si512(to, value);
    return value;
}

/* 512 bits to the register. */
static inline WIDE u32 reduced4(__m512i a) {
    __m128i last = _mm512_extracti32x4_epi32(a, 3);
    a = folded4(a, by_lanes, _mm512_setzero_si512());
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    return reduced(_mm_xor_si128(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)), last));
}

/* As ``crc_fold``, 64 bytes at a time; ``n`` is at least WIDE_MIN, a rest below 64 is left. */
static inline WIDE u32 crc_fold4(const u8 *from, u8 *to, size_t n, u32 crc) {
    __m512i a = _mm512_xor_si512(moved4(from, to), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = moved4(from + 64, to ? to + 64 : to), c = moved4(from + 128, to ? to + 128 : to);
    __m512i d = moved4(from + 192, to ? to + 192 : to);
    size_t at = 256;
    for (; at + 256 <= n; at += 256) {
        u8 *out = to ? to + at : to;
        a = folded4(a, by_2048, moved4(from + at, out));
        b = folded4(b, by_2048, moved4(from + at + 64, to ? out + 64 : out));
        c = folded4(c, by_2048, moved4(from + at + 128, to ? out + 128 : out));
        d = folded4(d, by_2048, moved4(from + at + 192, to ? out + 192 : out));
    }
    a = folded4(folded4(folded4(a, by_512, b), by_512, c), by_512, d);
    for (; at + 64 <= n; at += 64) a = folded4(a, by_512, moved4(from + at, to ? to + at : to));
    return reduced4(a);
}

static WIDE u32 crc_wide(const u8 *from, size_t n, u32 crc) { return crc_fold4(from, 0, n, crc); }
static WIDE u32 copy_wide(const u8 *from, u8 *to, size_t n, u32 crc) { return crc_fold4(from, to, n, crc); }
#endif

#if ARM
__attribute__((target("+crc"))) static u32 crc_arm(const u8 *from, size_t n, u32 crc) {
    for (; n >= 8; n -= 8, from += 8) {
        u64 word;
        memcpy(&word, from, 8);
        crc = __crc32d(crc, word);
    }
    for (; n; n--) crc = __crc32b(crc, *from++);
    return crc;
}
#endif

static u32 crc_more(const u8 *from, size_t n, u32 crc) {
#ifdef WIDE
    if (wide && n >= WIDE_MIN) {
        crc = crc_wide(from, n, crc);
        from += n & ~(size_t)63, n &= 63;
    }
#endif
#if X86
    if (fast_crc && n >= 16) {
        crc = crc_folded(from, n, crc);
        from += n & ~(size_t)15, n &= 15;
    }
#elif ARM
    if (fast_crc) return crc_arm(from, n, crc);
#endif
    return crc_tables(from, n, crc);
}

/* CRC of what is copied, one pass over it. */
static u32 crc_copy(const u8 *from, u8 *to, size_t n, u32 crc) {
#ifdef WIDE
    if (wide && n >= WIDE_MIN) {
        crc = copy_wide(from, to, n, crc);
        size_t whole = n & ~(size_t)63;
        from += whole, to += whole, n -= whole;
    }
#endif
#if X86
    if (fast_crc && n >= 16) {
        crc = copy_folded(from, to, n, crc);
        size_t whole = n & ~(size_t)15;
        from += whole, to += whole, n -= whole;
    }
#endif
    memcpy(to, from, n);
    return crc_more(to, n, crc);
}

/* zlib.crc32(data[:n], crc) */
u32 kernels_crc(const u8 *data, i64 n, u32 crc) { return ~crc_more(data, (size_t)n, ~crc); }

/* zlib.crc32 of each of ``rows`` rows of ``n`` bytes; copies them to ``to``, if that is somewhere. */
void kernels_rows(const u8 *from, i64 apart, u8 *to, i64 to_apart, i64 rows, i64 n, u32 *crc) {
    for (i64 row = 0; row < rows; row++, from += apart) {
        crc[row] = to ? ~crc_copy(from, to, (size_t)n, ~0u) : ~crc_more(from, (size_t)n, ~0u);
        if (to) to += to_apart;
    }
}

/* ---- the header's share in an ICRC ------------------------------------------------------------------------ */

enum { IP = 14, BTH_END = 54, HEADER_MAX = 76 };

/* Bytes of a frame that routers may change. */
static const u8 changing[] = {15, 22, 24, 25, 40, 41, 46};

#ifdef WIDE
static struct {
    u8 ones[64], start[64]; /* what is set, and what eight bytes of ones before the headers come to */
} headers[HEADER_MAX + 1];

static void start_headers(void) {
    u8 before[8];
    memset(before, 0xFF, 8);
    u32 crc = crc_tables(before, 8, ~0u);
    for (int width = BTH_END; width <= HEADER_MAX; width++) {
        for (size_t k = 0; k < sizeof changing; k++) headers[width].ones[64 - width + changing[k]] = 0xFF;
        memcpy(headers[width].start + 64 - (width - IP), &crc, 4);
    }
}

/* CRC register behind the headers, which are the end of 64 bytes: zeros before them change nothing. */
static WIDE u32 header_wide(const u8 *frame, size_t width) {
    const void *begin = (const void *)((uintptr_t)frame + width - 64);
    __m512i value = _mm512_maskz_loadu_epi8(~(u64)0 << (64 - (width - IP)), begin); /* nothing before the frame */
    value = _mm512_or_si512(value, _mm512_loadu_si512(headers[width].ones));
    return reduced4(_mm512_xor_si512(value, _mm512_loadu_si512(headers[width].start)));
}
#endif

static u32 moved_past(u32 crc, const u32 *shift) {
    return shift[crc & 255] ^ shift[256 + (crc >> 8 & 255)] ^ shift[512 + (crc >> 16 & 255)] ^ shift[768 + (crc >> 24)];
}

/* CRC of eight bytes of ones and the headers with what routers may change as ones, moved past ``shift``'s bytes. */
static u32 header_share(const u8 *frame, size_t width, const u32 *shift) {
#ifdef WIDE
    if (wide) return moved_past(~header_wide(frame, width), shift);
#endif
    u8 masked[8 + HEADER_MAX];
    memset(masked, 0xFF, 8);
    memcpy(masked + 8, frame + IP, width - IP);
    for (size_t k = 0; k < sizeof changing; k++) masked[8 + changing[k] - IP] = 0xFF;
    return moved_past(~crc_more(masked, 8 + width - IP, ~0u), shift);
}

/* ---- scan: the frames of a receive by what tells flows apart ------------------------------------------------ */

enum { COLUMNS = 56, HEAD = 128, CLASSES_MAX = 64, SLOTS = 256 };

typedef struct {
    const u8 *data;
    i64 rows, stride, length;
} Block;

typedef struct { /* what lies behind the object's header in a numpy array of two dimensions */
    const u8 *data;
    int dimensions;
    const i64 *shape, *strides;
} Array;

typedef struct {
    const u8 **frame;   /* where each frame is, in order of arrival */
    i64 *length;
    i64 *order;         /* frames by class, classes in the order of their first frame */
    i64 *begin;         /* where each class begins in ``order``, and the end: CLASSES_MAX + 1 */
    u8 *key;            /* masked header of each class: (CLASSES_MAX, COLUMNS) */
    u8 *head;           /* first bytes of the first frame of each: (CLASSES_MAX, HEAD) */
    u8 *of;             /* class of each frame */
    i64 room, frames;   /* as many as these arrays can take; out: how many there are */
} Scan;

static const u8 mask_bytes[COLUMNS] __attribute__((aligned(8))) = {
    [0 ... 14] = 0xFF, [20] = 0x3F, [21] = 0xFF, [23] = 0xFF, [26 ... 33] = 0xFF, [36 ... 37] = 0xFF, [47 ... 49] = 0xFF,
};

static int differs(const u8 *frame, const u64 *mask, const u64 *key) {
    u64 difference = 0;
    for (int w = 0; w < COLUMNS / 8; w++) {
        u64 word;
        memcpy(&word, frame + 8 * w, 8);
        difference |= (word & mask[w]) ^ key[w];
    }
    return difference != 0;
}

typedef struct {
    Scan *scan;
    i64 count, behind; /* the arrays' fields are so far behind the addresses */
    const u8 *arrays[];
} Blocks;

enum { SCAN_AHEAD = 4, NO_CLASS = 0xFF };

/* Returns the number of classes; 0 if there are more than it can tell apart, or an array is not what it can read;
   -1 if there is no room. */
i64 kernels_scan(const Blocks *told) {
    Scan *s = told->scan;
    const u8 *const *blocks = told->arrays;
    const i64 count = told->count, behind = told->behind;
    u64 keys[CLASSES_MAX][COLUMNS / 8], mask[COLUMNS / 8];
    u8 slots[SLOTS], after[CLASSES_MAX]; /* the class of the frame that came behind one of a class, the last time */
    i64 rows[CLASSES_MAX] = {0}, classes = 0, n = 0;
    u8 last = 0;
    s->frames = 0;
    for (i64 b = 0; b < count; b++) {
        const Array *block = (const Array *)(const void *)(blocks[b] + behind);
        if (block->dimensions != 2 || (block->strides[1] != 1 && block->shape[1] > 1)) return 0;
        s->frames += block->shape[0];
    }
    if (s->frames > s->room) return -1;
    memset(slots, 0xFF, sizeof slots);
    memcpy(mask, mask_bytes, sizeof mask);
    for (i64 b = 0; b < count; b++) {
        const Array *block = (const Array *)(const void *)(blocks[b] + behind);
        const i64 length = block->shape[1], stride = block->strides[0];
        const u8 *at = block->data;
        for (i64 row = 0; row < block->shape[0]; row++, at += stride, n++) {
            if (row + SCAN_AHEAD < block->shape[0]) __builtin_prefetch(at + SCAN_AHEAD * stride);
            s->frame[n] = at;
            s->length[n] = length;
            const u8 before = last;
            if (!classes || length < COLUMNS) last = NO_CLASS;
            else if (!differs(at, mask, keys[after[last]])) last = after[last];
            else if (differs(at, mask, keys[last])) last = NO_CLASS;
            if (last == NO_CLASS) {
                u64 key[COLUMNS / 8] = {0}, hash = 0;
                memcpy(key, at, length < COLUMNS ? (size_t)length : COLUMNS);
                for (int w = 0; w < COLUMNS / 8; w++) key[w] &= mask[w];
                for (int w = 0; w < COLUMNS / 8; w++) hash = (hash ^ key[w]) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
                u32 slot = hash >> 56;
                while (slots[slot] != 0xFF && memcmp(key, keys[slots[slot]], COLUMNS)) slot = (slot + 1) % SLOTS;
                if (slots[slot] == 0xFF) {
                    if (classes == CLASSES_MAX) return 0;
                    slots[slot] = (u8)classes;
                    memcpy(keys[classes], key, COLUMNS);
                    memcpy(s->key + classes * COLUMNS, key, COLUMNS);
                    size_t have = length < HEAD ? (size_t)length : HEAD;
                    memcpy(s->head + classes * HEAD, at, have);
                    memset(s->head + classes * HEAD + have, 0, HEAD - have);
                    after[classes] = (u8)classes;
                    classes++;
                }
                last = slots[slot];
            }
            after[before] = last;
            s->of[n] = last;
            rows[last]++;
        }
    }
    i64 next[CLASSES_MAX], sum = 0;
    for (i64 c = 0; c < classes; c++) s->begin[c] = next[c] = sum, sum += rows[c];
    s->begin[classes] = sum;
    for (i64 i = 0; i < n; i++) s->order[next[s->of[i]]++] = i;
    return classes;
}

/* ---- a message's memory ---------------------------------------------------------------------------------------- */

typedef struct {
    u8 *payload, *header, *seen, *result;
    u32 *share, *result_crc;
    u8 *ina;  /* the ranks' own headers of the message, as their results carry them: (ranks, own) */
    u8 *done; /* slots that have their result */
    u16 *summed; /* how many ranks, from the first one on, are added up in the slot's result */
    i64 ranks, slots, mtu;
    i64 own, flags_at, flag; /* bytes of such a header, and what is set in which of them */
} Region;

typedef struct { /* how packets look, and how long the shift of their header's share is */
    i64 opcode, width, tail, pad;
    const u32 *shift;
} Layout;

/* Whether the frame at ``at`` in the order of classes has that layout's length and the right ICRC. */
int kernels_intact(const Scan *s, i64 at, const Layout *l) {
    const i64 i = s->order[at], length = l->width + l->tail + 4;
    const u8 *frame = s->frame[i];
    u32 icrc;
    if (s->length[i] != length) return 0; /* headers may say that a frame is longer than what there is of it */
    memcpy(&icrc, frame + length - 4, 4);
    return (header_share(frame, (size_t)l->width, l->shift) ^ ~crc_more(frame + l->width, (size_t)l->tail, ~0u)) == icrc;
}

/* ---- sum: the results of slots, and their CRC ------------------------------------------------------------------ */

enum { F32 = 1, I32 = 2, F16 = 3, BF16 = 4 };

/* All left to right in the order of ranks; every NaN becomes the quiet one without sign and payload. */

#define ROWS const u8 *const *rows, i64 n /* the first of them may be ``out`` */

static void sum_f32(ROWS, u8 *out, i64 at, i64 bytes) {
    for (; at < bytes; at += 4) {
        float total, next;
        memcpy(&total, rows[0] + at, 4);
        for (i64 row = 1; row < n; row++) {
            memcpy(&next, rows[row] + at, 4);
            total += next;
        }
        u32 bits = 0x7FC00000u;
        if (total == total) memcpy(&bits, &total, 4);
        memcpy(out + at, &bits, 4);
    }
}

static void sum_i32(ROWS, u8 *out, i64 at, i64 bytes) {
    for (; at < bytes; at += 4) {
        u32 total, next;
        memcpy(&total, rows[0] + at, 4);
        for (i64 row = 1; row < n; row++) {
            memcpy(&next, rows[row] + at, 4);
            total += next;
        }
        memcpy(out + at, &total, 4);
    }
}

#if X86
/* 64 bytes at a time, and the rest as above. */
#define STRIP 64

__attribute__((target("avx2"))) static void sum_f32_avx2(ROWS, u8 *out, i64 at, i64 bytes) {
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    for (; at + STRIP <= bytes; at += STRIP) {
        const u8 *from = rows[0] + at;
        __m256 a = _mm256_loadu_ps((const float *)from), b = _mm256_loadu_ps((const float *)(from + 32));
        for (i64 row = 1; row < n; row++) {
            from = rows[row] + at;
            a = _mm256_add_ps(a, _mm256_loadu_ps((const float *)from));
            b = _mm256_add_ps(b, _mm256_loadu_ps((const float *)(from + 32)));
        }
        a = _mm256_blendv_ps(a, quiet, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
        b = _mm256_blendv_ps(b, quiet, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
        _mm256_storeu_ps((float *)(out + at), a);
        _mm256_storeu_ps((float *)(out + at + 32), b);
    }
    sum_f32(rows, n, out, at, bytes);
}

__attribute__((target("avx2"))) static void sum_i32_avx2(ROWS, u8 *out, i64 at, i64 bytes) {
    for (; at + STRIP <= bytes; at += STRIP) {
        const u8 *from = rows[0] + at;
        __m256i a = _mm256_loadu_si256((const __m256i *)from), b = _mm256_loadu_si256((const __m256i *)(from + 32));
        for (i64 row = 1; row < n; row++) {
            from = rows[row] + at;
            a = _mm256_add_epi32(a, _mm256_loadu_si256((const __m256i *)from));
            b = _mm256_add_epi32(b, _mm256_loadu_si256((const __m256i *)(from + 32)));
        }
        _mm256_storeu_si256((__m256i *)(out + at), a);
        _mm256_storeu_si256((__m256i *)(out + at + 32), b);
    }
    sum_i32(rows, n, out, at, bytes);
}
#else
#define sum_f32_avx2 sum_f32
#define sum_i32_avx2 sum_i32
#endif

#ifdef WIDE
static WIDE void sum_f32_wide(ROWS, u8 *out, i64 at, i64 bytes) {
    const __m512i quiet = _mm512_set1_epi32(0x7FC00000);
    for (; at + 2 * STRIP <= bytes; at += 2 * STRIP) {
        const u8 *from = rows[0] + at;
        __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + 64);
        for (i64 row = 1; row < n; row++) {
            from = rows[row] + at;
            a = _mm512_add_ps(a, _mm512_loadu_ps(from));
            b = _mm512_add_ps(b, _mm512_loadu_ps(from + 64));
        }
        __m512i x = _mm512_castps_si512(a), y = _mm512_castps_si512(b);
        x = _mm512_mask_mov_epi32(x, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
        y = _mm512_mask_mov_epi32(y, _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), quiet);
        _mm512_storeu_si512(out + at, x);
        _mm512_storeu_si512(out + at + 64, y);
    }
    sum_f32_avx2(rows, n, out, at, bytes);
}

static WIDE void sum_i32_wide(ROWS, u8 *out, i64 at, i64 bytes) {
    for (; at + 2 * STRIP <= bytes; at += 2 * STRIP) {
        const u8 *from = rows[0] + at;
        __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
        for (i64 row = 1; row < n; row++) {
            from = rows[row] + at;
            a = _mm512_add_epi32(a, _mm512_loadu_si512(from));
            b = _mm512_add_epi32(b, _mm512_loadu_si512(from + 64));
        }
        _mm512_storeu_si512(out + at, a);
        _mm512_storeu_si512(out + at + 64, b);
    }
    sum_i32_avx2(rows, n, out, at, bytes);
}
#endif

typedef void Sum(ROWS, u8 *out, i64 at, i64 bytes);

static Sum *sum_of(i64 kind) {
#ifdef WIDE
    if (wide && fast_sum) return kind == F32 ? sum_f32_wide : sum_i32_wide;
#endif
    if (fast_sum) return kind == F32 ? sum_f32_avx2 : sum_i32_avx2;
    return kind == F32 ? sum_f32 : sum_i32;
}

enum { ROWS_MAX = 16 };

/* Adds the payloads of ranks ``begin`` to ``end - 1`` to what the slot's result has of those before them. That of
   ``rank`` is at ``own``. */
static void add_up(const Region *r, Sum *sum, i64 o, i64 begin, i64 end, i64 rank, const u8 *own, i64 bytes) {
    const u8 *rows[ROWS_MAX];
    u8 *out = r->result + o * r->mtu;
    while (begin < end) {
        i64 n = 0;
        if (begin) rows[n++] = out;
        for (; begin < end && n < ROWS_MAX; begin++)
            rows[n++] = begin == rank ? own : r->payload + (begin * r->slots + o) * r->mtu;
        sum(rows, n, out, 0, bytes);
    }
}

/* ---- place: packets of one flow into the slots of a message --------------------------------------------------- */

typedef struct {
    const Scan *scan;
    i64 from, to; /* frames in the order of classes */
    const Region *region;
    i64 rank, offset, packets; /* the first one's slot, and how many the message has */
    i64 psn, psn_mask;
    const Layout *layouts; /* of the first, the middle and the last packet; opcode -1: not known */
    i64 kind;              /* of elements to be added up as soon as a slot is full; 0: later, or not here */
    i64 taken;             /* out: frames dealt with */
    i64 right, past;       /* out: packets placed, and the offset behind the last of them */
    i64 full, full_past;   /* out: slots that have their result now, and the offset behind the last of them */
} Place;

enum { AHEAD = 3, HEADERS_AHEAD = 6 };

static void prefetched(const u8 *frame, i64 n) {
    for (i64 at = 0; at < n; at += 64) __builtin_prefetch(frame + at);
}

/* The same of what is written soon: the first of all ranks' packets find their slots in no near cache. */
static void prefetched_to_write(const u8 *slot, i64 n) {
    for (i64 at = 0; at < n; at += 64) __builtin_prefetch(slot + at, 1);
}

/* How many ranks the sum of slot ``o`` has in it once the packet of ``rank`` is there. */
static i64 summed_with(const Region *r, i64 rank, i64 o) {
    i64 end = r->summed[o];
    while (end < r->ranks && (end == rank || r->seen[end * r->slots + o])) end++;
    return end;
}

/* Takes frames as long as they are the next packets of the message, in slots that this
   rank has not filled; those with a wrong ICRC are taken and forgotten, but for the first one of a message.
   A payload whose rank is next in the slot's sum is added there from where it is, and those that waited for it;
   the others are kept. */
void kernels_place(Place *p) {
    const Scan *s = p->scan;
    const Region *r = p->region;
    const i64 from = p->from, to = p->to;
    i64 k = 0, right = 0, past = p->offset, full = 0, full_past = 0;
    Sum *sum = p->kind ? sum_of(p->kind) : 0;
    for (; from + k < to && p->offset + k < p->packets; k++) {
        i64 o = p->offset + k, i = s->order[from + k];
        const u8 *frame = s->frame[i];
        if (from + k + AHEAD < to) prefetched(s->frame[s->order[from + k + AHEAD]], r->mtu + BTH_END);
        const Layout *l = p->layouts + (o == p->packets - 1 ? 2 : o > 0);
        i64 length = l->width + l->tail + 4, slot = p->rank * r->slots + o;
        if (l->opcode < 0 || s->length[i] != length || frame[42] != l->opcode || (frame[43] >> 4 & 3) != l->pad) break;
        if (be16(frame + 16) != length - 14 || be16(frame + 38) != length - 34) break;
        if ((be32(frame + 50) - (u32)p->psn - (u32)k) & (u32)p->psn_mask) break;
        if (r->seen[slot]) break;
        u32 icrc, share = header_share(frame, (size_t)l->width, l->shift);
        memcpy(&icrc, frame + length - 4, 4);
        const u8 *body = frame + l->width;
        i64 end = sum && !l->pad ? summed_with(r, p->rank, o) : 0;
        u8 *out = r->result + o * r->mtu, *to = 0;
        if (end <= p->rank) to = r->payload + slot * r->mtu;
        else if (end == 1 && r->ranks > 1) to = out; /* nothing to add it to */
        if (to && o + 1 < r->slots) prefetched_to_write(to + r->mtu, r->mtu);
        u32 crc = to ? crc_copy(body, to, (size_t)l->tail, ~0u) : crc_more(body, (size_t)l->tail, ~0u);
        if ((~crc ^ share) != icrc) {
            if (o == 0) break; /* what it said of the message cannot be believed */
            continue;
        }
        u8 *header = r->header + slot * HEADER_MAX;
        __builtin_prefetch(header + HEADERS_AHEAD * HEADER_MAX, 1);
        memcpy(header, frame, (size_t)l->width);
        memset(header + 40, 0, 2); /* no UDP checksum: the payload will be another */
        if (o == 0) {
            u8 *ina = r->ina + p->rank * r->own;
            memcpy(ina, body, (size_t)r->own);
            ina[r->flags_at] |= (u8)r->flag;
        }
        r->share[slot] = share;
        r->seen[slot] = 1;
        if (!to) add_up(r, sum, o, r->summed[o], end, p->rank, body, l->tail);
        if (end > p->rank) r->summed[o] = (u16)end;
        if (end == r->ranks) {
            r->result_crc[o] = ~crc_more(out, (size_t)l->tail, ~0u);
            r->done[o] = 1;
            full++, full_past = o + 1;
        }
        right++;
        past = o + 1;
    }
    p->taken = k, p->right = right, p->past = past, p->full = full, p->full_past = full_past;
}

/* Sums of the slots ``begin`` to ``end - 1`` over all ranks, in their order, and their CRCs. That of slot ``last``
   is of ``payload`` bytes and ``pad`` zeros behind them. */
void kernels_sum(const Region *r, i64 kind, i64 begin, i64 end, i64 last, i64 payload, i64 pad) {
    Sum *sum = sum_of(kind);
    for (i64 o = begin; o < end; o++) {
        u8 *out = r->result + o * r->mtu;
        add_up(r, sum, o, r->summed[o], r->ranks, -1, 0, r->mtu);
        r->summed[o] = (u16)r->ranks;
        size_t tail = (size_t)r->mtu;
        if (o == last) memset(out + payload, 0, (size_t)pad), tail = (size_t)(payload + pad);
        r->result_crc[o] = ~crc_more(out, tail, ~0u);
    }
}

/* ---- reduce: sums of arrays, to all places where they are wanted --------------------------------------------- */

/* As many elements at a time as stay in the first cache with their operand. */
enum { AT_ONCE = 1024 };

#define INLINE static inline __attribute__((always_inline))

INLINE void quieted(float *total, i64 n) {
    for (i64 i = 0; i < n; i++) {
        u32 bits;
        memcpy(&bits, total + i, 4);
        bits = (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : bits;
        memcpy(total + i, &bits, 4);
    }
}

INLINE void block_f32(const u8 *const *from, i64 inputs, i64 at, i64 n, u8 *out) {
    float total[AT_ONCE], own[AT_ONCE];
    memcpy(total, from[0] + at, (size_t)n * 4);
    for (i64 input = 1; input < inputs; input++) {
        memcpy(own, from[input] + at, (size_t)n * 4);
        for (i64 i = 0; i < n; i++) total[i] += own[i];
    }
    quieted(total, n);
    memcpy(out, total, (size_t)n * 4);
}

INLINE void block_i32(const u8 *const *from, i64 inputs, i64 at, i64 n, u8 *out) {
    u32 total[AT_ONCE], own[AT_ONCE];
    memcpy(total, from[0] + at, (size_t)n * 4);
    for (i64 input = 1; input < inputs; input++) {
        memcpy(own, from[input] + at, (size_t)n * 4);
        for (i64 i = 0; i < n; i++) total[i] += own[i];
    }
    memcpy(out, total, (size_t)n * 4);
}

INLINE void widened(const u8 *from, i64 n, float *out) {
    u16 narrow[AT_ONCE];
    u32 wide[AT_ONCE];
    memcpy(narrow, from, (size_t)n * 2);
    for (i64 i = 0; i < n; i++) wide[i] = (u32)narrow[i] << 16;
    memcpy(out, wide, (size_t)n * 4);
}

INLINE void block_bf16(const u8 *const *from, i64 inputs, i64 at, i64 n, u8 *out) {
    float total[AT_ONCE], own[AT_ONCE];
    u32 bits[AT_ONCE];
    u16 narrow[AT_ONCE];
    widened(from[0] + at, n, total);
    for (i64 input = 1; input < inputs; input++) {
        widened(from[input] + at, n, own);
        for (i64 i = 0; i < n; i++) total[i] += own[i];
    }
    quieted(total, n);
    memcpy(bits, total, (size_t)n * 4);
    for (i64 i = 0; i < n; i++) narrow[i] = (u16)((bits[i] + 0x7FFF + (bits[i] >> 16 & 1)) >> 16);
    memcpy(out, narrow, (size_t)n * 2);
}

#define BY_BLOCKS(block, itemsize)                                                        \
    do {                                                                                  \
        u8 sum[AT_ONCE * itemsize];                                                       \
        for (; at < bytes; at += AT_ONCE * itemsize) {                                    \
            i64 some = bytes - at < AT_ONCE * itemsize ? bytes - at : AT_ONCE * itemsize; \
            block(from, inputs, at, some / itemsize, sum);                                \
            for (i64 k = 0; k < outputs; k++) memcpy(to[k] + at, sum, (size_t)some);      \
        }                                                                                 \
    } while (0)

#define REDUCE const u8 *const *from, i64 inputs, u8 *const *to, i64 outputs, i64 at, i64 bytes

static void reduce_f32(REDUCE) { BY_BLOCKS(block_f32, 4); }
static void reduce_i32(REDUCE) { BY_BLOCKS(block_i32, 4); }
static void reduce_bf16(REDUCE) { BY_BLOCKS(block_bf16, 2); }

#if X86
/* Beyond so many arrays the processor does not see that each is read from its beginning to its end. */
enum { STREAMS_MAX = 8 };

__attribute__((target("avx2"))) static void reduce_f32_avx2(REDUCE) {
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    for (; inputs <= STREAMS_MAX && at + STRIP <= bytes; at += STRIP) {
        __m256 a = _mm256_loadu_ps((const float *)(from[0] + at)), b = _mm256_loadu_ps((const float *)(from[0] + at + 32));
        for (i64 input = 1; input < inputs; input++) {
            a = _mm256_add_ps(a, _mm256_loadu_ps((const float *)(from[input] + at)));
            b = _mm256_add_ps(b, _mm256_loadu_ps((const float *)(from[input] + at + 32)));
        }
        a = _mm256_blendv_ps(a, quiet, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
        b = _mm256_blendv_ps(b, quiet, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
        for (i64 k = 0; k < outputs; k++) {
            _mm256_storeu_ps((float *)(to[k] + at), a);
            _mm256_storeu_ps((float *)(to[k] + at + 32), b);
        }
    }
    BY_BLOCKS(block_f32, 4);
}

__attribute__((target("avx2"))) static void reduce_i32_avx2(REDUCE) {
    for (; inputs <= STREAMS_MAX && at + STRIP <= bytes; at += STRIP) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(from[0] + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(from[0] + at + 32));
        for (i64 input = 1; input < inputs; input++) {
            a = _mm256_add_epi32(a, _mm256_loadu_si256((const __m256i *)(from[input] + at)));
            b = _mm256_add_epi32(b, _mm256_loadu_si256((const __m256i *)(from[input] + at + 32)));
        }
        for (i64 k = 0; k < outputs; k++) {
            _mm256_storeu_si256((__m256i *)(to[k] + at), a);
            _mm256_storeu_si256((__m256i *)(to[k] + at + 32), b);
        }
    }
    BY_BLOCKS(block_i32, 4);
}

INLINE __attribute__((target("avx2"))) __m256 wide_bf16(const u8 *from) {
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

/* Rounded to nearest even: half of the last kept place is added, less one unit unless that place is odd. */
INLINE __attribute__((target("avx2"))) __m256i rounded(__m256 total) {
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    total = _mm256_blendv_ps(total, quiet, _mm256_cmp_ps(total, total, _CMP_UNORD_Q));
    __m256i bits = _mm256_castps_si256(total);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    return _mm256_srli_epi32(bits, 16);
}

__attribute__((target("avx2"))) static void reduce_bf16_avx2(REDUCE) {
    for (; inputs <= STREAMS_MAX && at + STRIP / 2 <= bytes; at += STRIP / 2) {
        __m256 a = wide_bf16(from[0] + at), b = wide_bf16(from[0] + at + 16);
        for (i64 input = 1; input < inputs; input++) {
            a = _mm256_add_ps(a, wide_bf16(from[input] + at));
            b = _mm256_add_ps(b, wide_bf16(from[input] + at + 16));
        }
        __m256i both = _mm256_packus_epi32(rounded(a), rounded(b)); /* by lanes of 128 bits */
        both = _mm256_permute4x64_epi64(both, 0xD8);
        for (i64 k = 0; k < outputs; k++) _mm256_storeu_si256((__m256i *)(to[k] + at), both);
    }
    BY_BLOCKS(block_bf16, 2);
}

#define HALVES __attribute__((target("avx2,f16c")))

/* float16 is widened, added and rounded once. ``n`` is at most AT_ONCE; what lies behind it is not looked at. */
INLINE HALVES void block_f16(const u8 *const *from, i64 inputs, i64 at, i64 n, u8 *out) {
    float total[AT_ONCE];
    u16 own[AT_ONCE + 7];
    memset(own + n, 0, 14);
    for (i64 input = 0; input < inputs; input++) {
        memcpy(own, from[input] + at, (size_t)n * 2);
        for (i64 i = 0; i < n; i += 8) {
            __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(own + i)));
            _mm256_storeu_ps(total + i, input ? _mm256_add_ps(_mm256_loadu_ps(total + i), wide) : wide);
        }
    }
    quieted(total, n);
    for (i64 i = 0; i < n; i += 8) {
        __m256 sum = _mm256_loadu_ps(total + i);
        _mm_storeu_si128((__m128i *)(own + i), _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
    }
    memcpy(out, own, (size_t)n * 2);
}

INLINE HALVES __m256 wide_f16(const u8 *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }

INLINE HALVES __m128i narrowed(__m256 total) {
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    total = _mm256_blendv_ps(total, quiet, _mm256_cmp_ps(total, total, _CMP_UNORD_Q));
    return _mm256_cvtps_ph(total, _MM_FROUND_TO_NEAREST_INT);
}

HALVES static void reduce_f16_avx2(REDUCE) {
    for (; inputs <= STREAMS_MAX && at + STRIP / 2 <= bytes; at += STRIP / 2) {
        __m256 a = wide_f16(from[0] + at), b = wide_f16(from[0] + at + 16);
        for (i64 input = 1; input < inputs; input++) {
            a = _mm256_add_ps(a, wide_f16(from[input] + at));
            b = _mm256_add_ps(b, wide_f16(from[input] + at + 16));
        }
        for (i64 k = 0; k < outputs; k++) {
            _mm_storeu_si128((__m128i *)(to[k] + at), narrowed(a));
            _mm_storeu_si128((__m128i *)(to[k] + at + 16), narrowed(b));
        }
    }
    BY_BLOCKS(block_f16, 2);
}
#else
#define reduce_f32_avx2 reduce_f32
#define reduce_i32_avx2 reduce_i32
#define reduce_bf16_avx2 reduce_bf16
#define reduce_f16_avx2 reduce_bf16 /* never called: float16 is said to be missing */
#endif

/* The sum of ``inputs`` arrays of ``bytes`` bytes to ``outputs`` arrays, one pass over all of them. An array that
   is written is one of those that are read, or lies apart from them all. */
void kernels_reduce(const u8 *const *from, i64 inputs, u8 *const *to, i64 outputs, i64 kind, i64 bytes) {
    if (kind == F32) (fast_sum ? reduce_f32_avx2 : reduce_f32)(from, inputs, to, outputs, 0, bytes);
    else if (kind == I32) (fast_sum ? reduce_i32_avx2 : reduce_i32)(from, inputs, to, outputs, 0, bytes);
    else if (kind == BF16) (fast_sum ? reduce_bf16_avx2 : reduce_bf16)(from, inputs, to, outputs, 0, bytes);
    else reduce_f16_avx2(from, inputs, to, outputs, 0, bytes);
}

/* ---- copy: to where nobody reads soon -------------------------------------------------------------------------- */

#if X86
__attribute__((target("avx2"))) static void copy_past_caches(const u8 *from, u8 *to, i64 bytes) {
    i64 at = (i64)(-(uintptr_t)to & 31);
    if (at > bytes) at = bytes;
    memcpy(to, from, (size_t)at);
    for (; at + STRIP <= bytes; at += STRIP) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(from + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(from + at + 32));
        _mm256_stream_si256((__m256i *)(to + at), a);
        _mm256_stream_si256((__m256i *)(to + at + 32), b);
    }
    memcpy(to + at, from + at, (size_t)(bytes - at));
    _mm_sfence(); /* whoever is told that it is there must see it */
}
#endif

/* The caches keep what they have: the line that is written is not read first. */
void kernels_copy(const u8 *from, u8 *to, i64 bytes) {
#if X86
    if (fast_sum) {
        copy_past_caches(from, to, bytes);
        return;
    }
#endif
    memcpy(to, from, (size_t)bytes);
}

/* ---- seal: results under the headers of their ranks ------------------------------------------------------------ */

#ifdef WIDE
static WIDE void copied_wide(u8 *to, const u8 *from, size_t n) {
    size_t at = 0;
    for (; at + 64 <= n; at += 64) _mm512_storeu_si512(to + at, _mm512_loadu_si512(from + at));
    __mmask64 rest = ((u64)1 << (n - at)) - 1;
    _mm512_mask_storeu_epi8(to + at, rest, _mm512_maskz_loadu_epi8(rest, from + at));
}
#endif

static void copied(u8 *to, const u8 *from, size_t n) {
#ifdef WIDE
    if (wide) {
        copied_wide(to, from, n);
        return;
    }
#endif
    memcpy(to, from, n);
}

/* Packets of one layout into ``out``, (ranks, packets, frame bytes); returns the end of that. */
static u8 *seal(const Region *r, i64 rank, i64 ranks, i64 begin, i64 end, const Layout *l, u8 *out) {
    const i64 width = l->width, tail = l->tail, frame = width + tail + 4;
    if (begin >= end) return out;
    for (i64 o = begin; o < end; o++) {
        const u8 *body = r->result + o * r->mtu;
        for (i64 k = 0; k < ranks; k++) {
            i64 slot = (rank + k) * r->slots + o;
            u8 *to = out + (k * (end - begin) + o - begin) * frame;
            u32 crc = r->result_crc[o];
            if (o + 1 < end) prefetched_to_write(to + frame, frame);
            copied(to, r->header + slot * HEADER_MAX, (size_t)width);
            copied(to + width, body, (size_t)tail);
            if (o == 0) {
                memcpy(to + width, r->ina + (rank + k) * r->own, (size_t)r->own);
                crc = ~crc_more(to + width, (size_t)tail, ~0u);
            }
            crc ^= r->share[slot];
            memcpy(to + width + tail, &crc, 4);
        }
    }
    return out + ranks * (end - begin) * frame;
}

typedef struct {
    const Region *region;
    const Layout *layouts;
    i64 rank, ranks, begin, end, packets;
    u8 *out;
} Seal;

/* Packets ``begin`` to ``end - 1`` of ``ranks`` ranks from ``rank`` on: the first one of all ranks, then the middle
   ones, then the last one, as far as they are among them. */
void kernels_seal(const Seal *s) {
    const Region *r = s->region;
    const Layout *layouts = s->layouts;
    const i64 rank = s->rank, ranks = s->ranks, begin = s->begin, end = s->end, packets = s->packets;
    u8 *out = s->out;
    i64 last = packets - 1;
    if (last > 0 && begin == 0) out = seal(r, rank, ranks, 0, 1, layouts, out);
    out = seal(r, rank, ranks, begin > 1 ? begin : 1, end < last ? end : last, layouts + 1, out);
    if (end == packets) seal(r, rank, ranks, last, packets, layouts + 2, out);
}

#include "nic.c"
