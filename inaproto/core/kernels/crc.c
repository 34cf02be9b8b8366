/* CRC-32, of bytes and of headers as the ICRC takes them; part of kernels.c, which includes this file. */

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

/* As ``crc_fold``, 64 bytes at a time; ``n`` is at least WIDE_MIN, a rest below 64 is left. ``a``: the first 64 bytes
   with what is before them. */
static inline WIDE u32 crc_fold4(const u8 *from, u8 *to, size_t n, __m512i a) {
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

/* The first 64 bytes behind a CRC. */
static inline WIDE __m512i begun(const u8 *from, u8 *to, u32 crc) {
    return _mm512_xor_si512(moved4(from, to), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
}

static WIDE u32 crc_wide(const u8 *from, size_t n, u32 crc) { return crc_fold4(from, 0, n, begun(from, 0, crc)); }
static WIDE u32 copy_wide(const u8 *from, u8 *to, size_t n, u32 crc) {
    return crc_fold4(from, to, n, begun(from, to, crc));
}
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

/* The headers, which are the end of 64 bytes: zeros before them change nothing. */
static inline WIDE __m512i headers_wide(const u8 *frame, size_t width) {
    const void *begin = (const void *)((uintptr_t)frame + width - 64);
    __m512i value = _mm512_maskz_loadu_epi8(~(u64)0 << (64 - (width - IP)), begin); /* nothing before the frame */
    value = _mm512_or_si512(value, _mm512_loadu_si512(headers[width].ones));
    return _mm512_xor_si512(value, _mm512_loadu_si512(headers[width].start));
}

/* CRC register behind the headers. */
static WIDE u32 header_wide(const u8 *frame, size_t width) { return reduced4(headers_wide(frame, width)); }

/* The same behind the headers and what follows them, as far as ``crc_fold4`` goes: one reduction for both. */
static WIDE u32 frame_wide(const u8 *frame, size_t width, const u8 *body, u8 *to, size_t n) {
    return crc_fold4(body, to, n, folded4(headers_wide(frame, width), by_512, moved4(body, to)));
}
#endif

/* Register of the CRC behind the headers. */
static u32 headers_crc(const u8 *frame, i64 width) {
#ifdef WIDE
    if (wide) return header_wide(frame, (size_t)width);
#endif
    u8 masked[8 + HEADER_MAX];
    memset(masked, 0xFF, 8);
    memcpy(masked + 8, frame + IP, (size_t)(width - IP));
    for (size_t k = 0; k < sizeof changing; k++) masked[8 + changing[k] - IP] = 0xFF;
    return crc_more(masked, (size_t)(8 + width - IP), ~0u);
}

/* The same behind the headers and the ``n`` bytes that follow them, which are at ``body``; they are copied to ``to``,
   if that is somewhere. */
static u32 frame_crc(const u8 *frame, i64 width, const u8 *body, u8 *to, size_t n) {
#ifdef WIDE
    if (wide && n >= WIDE_MIN) {
        u32 crc = frame_wide(frame, (size_t)width, body, to, n);
        size_t whole = n & ~(size_t)63;
        body += whole, n -= whole;
        return to ? crc_copy(body, to + whole, n, crc) : crc_more(body, n, crc);
    }
#endif
    u32 crc = headers_crc(frame, width);
    return to ? crc_copy(body, to, n, crc) : crc_more(body, n, crc);
}

static u32 moved_past(u32 crc, const u32 *shift) {
    return shift[crc & 255] ^ shift[256 + (crc >> 8 & 255)] ^ shift[512 + (crc >> 16 & 255)] ^ shift[768 + (crc >> 24)];
}

/* CRC of eight bytes of ones and the headers with what routers may change as ones, moved past ``shift``'s bytes. */
static u32 header_share(const u8 *frame, size_t width, const u32 *shift) {
    return moved_past(~headers_crc(frame, (i64)width), shift);
}
