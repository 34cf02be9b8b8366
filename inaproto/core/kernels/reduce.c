/* Sums and copies of whole arrays; part of kernels.c, which includes this file. */

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

/* Lines are asked for so far ahead: the processor itself begins anew with each page of 4 KiB, and waits there. */
enum { ASKED_AHEAD = 2048 };

INLINE void ask_ahead(const u8 *const *from, i64 inputs, i64 at) {
    for (i64 input = 0; input < inputs; input++) __builtin_prefetch(from[input] + at + ASKED_AHEAD);
}

__attribute__((target("avx2"))) static void reduce_f32_avx2(REDUCE) {
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    for (; inputs <= STREAMS_MAX && at + STRIP <= bytes; at += STRIP) {
        ask_ahead(from, inputs, at);
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
        ask_ahead(from, inputs, at);
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
        ask_ahead(from, inputs, at);
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
        ask_ahead(from, inputs, at);
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
        __builtin_prefetch(from + at + ASKED_AHEAD);
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
