/* What a frame port on a packet socket does for each frame, compiled: which frames are one long segment, and the
   system calls. Each is told where things lie.

   What they must do is in the Python code beside each call of them, byte for byte and error for error; the tests
   compare the two. Plain C without Python's headers: a shared object that ctypes loads, for any Python. */

#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "headers are compared as little-endian words here"
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

#ifndef SOURCE
#define SOURCE 0
#endif

u32 ports_source(void) { return SOURCE; }

typedef struct { /* frames of one length, each contiguous */
    u8 *at;
    i64 rows, stride, length;
} Block;

enum {
    VNET = 10,      /* bytes of a virtio_net_hdr */
    ETHERNET = 14,
    HEADERS = 42,   /* Ethernet, IPv4 and UDP */
    UDP_AT = 34,
    LOOKED_AT = 48, /* bytes of packets that must agree */
    IP_MAX = 0xFFFF,
};

static u16 be16(const u8 *p) { return (u16)(p[0] << 8 | p[1]); }
static void put16(u8 *p, u32 v) { p[0] = (u8)(v >> 8), p[1] = (u8)v; }

static u32 folded(u32 sum) {
    while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
    return sum;
}

static u32 words(const u8 *from, const u8 *to) {
    u32 sum = 0;
    for (; from < to; from += 2) sum += be16(from);
    return sum;
}

/* ---- send ------------------------------------------------------------------------------------------------------- */

typedef struct {
    i64 fd, vnet;        /* vnet: whether a virtio_net_hdr stands before what is sent */
    i64 long_bytes_max;  /* of frames that may be in a long segment; 0: none may be */
    i64 packets_max;     /* of a long segment */
    i64 block, row;      /* the next frame; on return the first one that has not left */
    i64 frames, bytes;   /* out: what has left */
    i64 error, refused;  /* out: why the rest has not, and how many frames of it were tried together */
    i64 calls;           /* out: of the kernel */
} Output;

enum { MESSAGES = 64, PIECES = 1000 };

/* Packets from ``at`` on that can be one long segment. */
static i64 run(const u8 *at, i64 rows, i64 stride, i64 length) {
    static const u8 mask[LOOKED_AT] = { /* not the identification and the checksum of IP, nor what is behind UDP */
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        255, 255, 0,   0,   255, 255, 255, 255, 0,   0,   255, 255, 255, 255, 255, 255,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0,   0,   0,   0,   0,   0,
    };
    i64 total = length - ETHERNET;
    if (length <= LOOKED_AT || total > IP_MAX) return 0;
    if (be16(at + 12) != 0x0800 || at[14] != 0x45 || be16(at + 16) != total) return 0;
    if (at[20] & 0x3F || at[21] || at[23] != 17) return 0;
    if (be16(at + 36) != 4791 || be16(at + 38) != total - 20 || at[40] || at[41]) return 0;
    u64 first[LOOKED_AT / 8], keep[LOOKED_AT / 8], own[LOOKED_AT / 8];
    memcpy(first, at, LOOKED_AT);
    memcpy(keep, mask, LOOKED_AT);
    u16 id = be16(at + 18);
    for (i64 k = 1; k < rows; k++) {
        const u8 *frame = at + k * stride;
        u64 differs = 0;
        memcpy(own, frame, LOOKED_AT);
        for (int w = 0; w < LOOKED_AT / 8; w++) differs |= (own[w] ^ first[w]) & keep[w];
        if (differs || be16(frame + 18) != (u16)(id + k)) return 0;
    }
    return rows;
}

/* The virtio_net_hdr and the headers of a long segment whose first packet begins at ``first``. */
static void long_header(u8 *to, const u8 *first, i64 step, i64 payload) {
    const u16 vnet[] = {1 /* needs a checksum */ | 5 << 8 /* UDP segments */, HEADERS, (u16)step, UDP_AT, 6};
    u32 udp = 8 + (u32)payload;
    memcpy(to, vnet, VNET);
    u8 *own = to + VNET;
    memcpy(own, first, HEADERS);
    put16(own + 16, 20 + udp);
    put16(own + 24, 0);
    put16(own + 24, 0xFFFF - folded(words(own + 14, own + 34)));
    put16(own + 38, udp);
    /* Of the pseudo header, not inverted: the kernel adds the rest. */
    put16(own + 40, folded(words(own + 26, own + 34) + 17 + udp));
}

typedef struct {
    struct mmsghdr messages[MESSAGES];
    struct { i64 block, row, rows, bytes; } of[MESSAGES];
    u8 heads[MESSAGES][VNET + HEADERS];
    struct iovec pieces[PIECES];
    int n, used;
} Batch;

/* 0 if all of it has left. */
static int leave(Output *o, Batch *b) {
    int done = 0;
    while (done < b->n) {
        int sent = sendmmsg((int)o->fd, b->messages + done, (unsigned)(b->n - done), 0);
        o->calls++;
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) {
            o->error = sent ? errno : EAGAIN;
            o->refused = b->of[done].rows;
            break;
        }
        for (int end = done + sent; done < end; done++) o->frames += b->of[done].rows, o->bytes += b->of[done].bytes;
    }
    if (done < b->n) o->block = b->of[done].block, o->row = b->of[done].row;
    b->n = b->used = 0;
    return o->error != 0;
}

static void add(Batch *b, const void *at, size_t nbytes) { b->pieces[b->used++] = (struct iovec){(void *)at, nbytes}; }

/* Sends the frames of ``n`` blocks from the next one on, in order, until the kernel takes no more or refuses. */
void ports_send(Output *o, const Block *blocks, i64 n) {
    static const u8 plain[VNET];
    Batch b;
    b.n = b.used = 0;
    o->frames = o->bytes = o->error = o->refused = o->calls = 0;
    for (; o->block < n; o->block++, o->row = 0) {
        const Block *block = blocks + o->block;
        i64 length = block->length, step = length - HEADERS, left = block->rows - o->row, together = 1;
        if (left > 1 && length <= o->long_bytes_max &&
            run(block->at + o->row * block->stride, left, block->stride, length)) {
            together = (IP_MAX + ETHERNET - HEADERS) / step;
            if (together > o->packets_max) together = o->packets_max;
        }
        for (i64 rows; o->row < block->rows; o->row += rows) {
            const u8 *at = block->at + o->row * block->stride;
            left = block->rows - o->row;
            /* One packet is no long segment: the kernel would take it for one that lacks its checksum. */
            rows = together < left ? together - (together > 1 && left == together + 1) : left;
            if (b.n == MESSAGES || b.used + rows + 1 > PIECES) {
                i64 here = o->block, row = o->row;
                if (leave(o, &b)) return;
                o->block = here, o->row = row;
            }
            struct msghdr *m = &b.messages[b.n].msg_hdr;
            memset(m, 0, sizeof *m);
            m->msg_iov = b.pieces + b.used;
            if (rows > 1) {
                long_header(b.heads[b.n], at, step, rows * step);
                add(&b, b.heads[b.n], VNET + HEADERS);
                for (i64 k = 0; k < rows; k++) add(&b, at + k * block->stride + HEADERS, (size_t)step);
            } else {
                if (o->vnet) add(&b, plain, VNET);
                add(&b, at, (size_t)length);
            }
            m->msg_iovlen = (size_t)(b.pieces + b.used - m->msg_iov);
            b.of[b.n].block = o->block, b.of[b.n].row = o->row;
            b.of[b.n].rows = rows, b.of[b.n].bytes = rows * length;
            b.n++;
        }
    }
    leave(o, &b);
}
