/* Sums of the payloads of a message's slots; part of kernels.c, which includes this file. */

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
