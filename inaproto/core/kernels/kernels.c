/* The loops of the accelerator that see packets, compiled. Each is told where things lie; none knows a protocol.

   What they must compute is in the numpy code beside each call of them, byte for byte; the property tests
   compare the two. Plain C without Python's headers: a shared object that ctypes loads, for any Python.

   Which instructions are used is decided when the library is loaded: carry-less multiplication (x86-64; of 64
   bytes at once where there is AVX-512) or the CRC instructions (aarch64) for CRC-32, AVX2 (or AVX-512) and F16C
   for sums; tables and plain loops elsewhere. */

#include <errno.h>
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

#include "crc.c"
#include "scan.c"

/* ---- a message's memory ---------------------------------------------------------------------------------------- */

typedef struct { /* how packets look, and how long the shift of their header's share is */
    i64 opcode, width, tail, pad;
    const u32 *shift;
} Layout;

typedef struct {
    u8 *payload; /* 0: nothing is kept any more */
    i64 serial, packets; /* of the message */
    i64 kind;            /* of elements to be added up as soon as a slot is full; 0: later, or not here */
    u8 *header, *seen, *result;
    u32 *share, *result_crc;
    u8 *ina;  /* the ranks' own headers of the message, as their results carry them: (ranks, own) */
    u8 *done; /* slots that have their result */
    u16 *summed; /* how many ranks, from the first one on, are added up in the slot's result */
    i64 ranks, slots, mtu;
    i64 own, flags_at, flag; /* bytes of such a header, and what is set in which of them */
    u8 *agreed;              /* such a header less its rank, which all ranks must send */
    i64 *psn0;               /* PSN of each rank's first packet; -1: it has not come */
    i64 like;                /* messages with equal numbers differ in serial numbers and payload alone; -1: none */
    const Layout *layouts;   /* of the first, the middle and the last packet; opcode -1: not known */
} Region;

/* Whether a frame of that length has that layout. Its headers must say so, too: they may say that it is longer, or
   shorter, than what there is of it. */
static int has_layout(const u8 *frame, i64 length, const Layout *l) {
    if (l->opcode < 0 || length != l->width + l->tail + 4) return 0;
    if (frame[42] != l->opcode || (frame[43] >> 4 & 3) != l->pad) return 0;
    return be16(frame + 16) == length - 14 && be16(frame + 38) == length - 34;
}

/* Whether the frame at ``at`` in the order of classes has that layout and the right ICRC. */
int kernels_intact(const Scan *s, i64 at, const Layout *l) {
    const i64 i = s->order[at], length = s->length[i];
    const u8 *frame = s->frame[i];
    u32 icrc;
    if (!has_layout(frame, length, l)) return 0;
    memcpy(&icrc, frame + length - 4, 4);
    return (header_share(frame, (size_t)l->width, l->shift) ^ ~crc_more(frame + l->width, (size_t)l->tail, ~0u)) == icrc;
}

#include "sums.c"

/* ---- place: packets of one flow into the slots of a message --------------------------------------------------- */

typedef struct {
    const Scan *scan;
    i64 from, to; /* frames in the order of classes */
    const Region *region;
    i64 rank, offset; /* the first one's slot */
    i64 psn, psn_mask;
    i64 taken;           /* out: frames dealt with */
    i64 right, past;     /* out: packets placed, and the offset behind the last of them */
    i64 full, full_past; /* out: slots that have their result now, and the offset behind the last of them */
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
static void place(Place *p) {
    const Scan *s = p->scan;
    const Region *r = p->region;
    const i64 from = p->from, to = p->to;
    i64 k = 0, right = 0, past = p->offset, full = 0, full_past = 0;
    Sum *sum = r->kind ? sum_of(r->kind) : 0;
    for (; from + k < to && p->offset + k < r->packets; k++) {
        i64 o = p->offset + k, i = s->order[from + k];
        const u8 *frame = s->frame[i];
        if (from + k + AHEAD < to) prefetched(s->frame[s->order[from + k + AHEAD]], r->mtu + BTH_END);
        const Layout *l = r->layouts + (o == r->packets - 1 ? 2 : o > 0);
        const i64 length = s->length[i], slot = p->rank * r->slots + o;
        if (!has_layout(frame, length, l)) break;
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

#include "join.c"

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
    i64 rank, ranks, begin, end;
    u8 *out;
} Seal;

/* Packets ``begin`` to ``end - 1`` of ``ranks`` ranks from ``rank`` on: the first one of all ranks, then the middle
   ones, then the last one, as far as they are among them. */
void kernels_seal(const Seal *s) {
    const Region *r = s->region;
    const Layout *layouts = r->layouts;
    const i64 rank = s->rank, ranks = s->ranks, begin = s->begin, end = s->end, packets = r->packets;
    u8 *out = s->out;
    i64 last = packets - 1;
    if (last > 0 && begin == 0) out = seal(r, rank, ranks, 0, 1, layouts, out);
    out = seal(r, rank, ranks, begin > 1 ? begin : 1, end < last ? end : last, layouts + 1, out);
    if (end == packets) seal(r, rank, ranks, last, packets, layouts + 2, out);
}

#include "reduce.c"
#include "gather.c"
#include "nic.c"
