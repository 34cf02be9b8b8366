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
        /* What a frame could hold goes frame by frame: who receives it finds it in slots, and cuts nothing. */
        if (left > 1 && length <= o->long_bytes_max && left * length > o->long_bytes_max &&
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

typedef struct { /* what lies behind the object's header in a numpy array of two dimensions */
    u8 *data;
    int dimensions;
    const i64 *shape, *strides;
} Array;

typedef struct {
    i64 count, behind; /* the arrays' fields are so far behind the addresses */
    const u8 *arrays[];
} Told;

/* As ``ports_send`` with these arrays, for which there is room in ``blocks``. -1, and nothing is sent: one is not what
   can be read so, or its frames are shorter or longer than a port takes. */
int ports_send_arrays(Output *o, const Told *told, Block *blocks, int shortest, int longest) {
    for (i64 k = 0; k < told->count; k++) {
        const Array *a = (const Array *)(const void *)(told->arrays[k] + told->behind);
        if (a->dimensions != 2 || (a->strides[1] != 1 && a->shape[0])) return -1;
        if (a->shape[1] < shortest || a->shape[1] > longest) return -1;
        blocks[k] = (Block){a->data, a->shape[0], a->strides[0], a->shape[1]};
    }
    ports_send(o, blocks, told->count);
    return 0;
}

/* ---- receive ---------------------------------------------------------------------------------------------------- */

typedef struct { /* struct tpacket2_hdr */
    u32 status, length, kept;
    u16 mac, net;
    u32 sec, nsec;
    u16 tci, tpid;
    u32 pad;
} Slot;

enum { USER = 1, COPY = 2, VLAN = 0x10, TPID = 0x40, KEY = 32 };

typedef struct {
    u8 *ring;
    i64 slots, slot_bytes;
    i64 slots_max, bytes_max; /* that are read together */
    i64 frame_bytes_max, packets_max;
    i64 fd;                   /* gives segments that are longer than a slot */
    u8 *memory;               /* where their packets go */
    i64 memory_bytes, used;
    i64 at;                   /* the first slot */
    i64 ready;                /* slots from there on that hold frames; 0: to be found */
    i64 next;                 /* of these, the next one to be read; on return, all before it were */
    i64 blocks;               /* out: blocks that were found */
    i64 unusual;              /* out: slots from the next one on, alike, that are not for here */
    i64 frames, bytes;        /* out: in the blocks */
    i64 heard;                /* out: the interface went down, which the socket does not say again */
    i64 error;                /* out: of the socket; -1: what it gave is not what the slot told */
} Input;

/* All that says how the frame of a slot is to be treated. */
static void key_of(const u8 *slot, u8 *key) {
    Slot s;
    memcpy(&s, slot, sizeof s);
    s.status &= USER | COPY | VLAN | TPID;
    memset(key, 0, KEY);
    memcpy(key, &s, 16);
    memcpy(key + 16, slot + 24, 4);
    memcpy(key + 20, slot + s.mac - VNET, VNET);
}

static i64 ready(const Input *in) {
    i64 n = 0, bytes = 0, most = in->slots - in->at;
    u16 mac = 0;
    if (most > in->slots_max) most = in->slots_max;
    for (; n < most; n++) {
        const Slot *s = (const Slot *)(in->ring + (in->at + n) * in->slot_bytes);
        __builtin_prefetch((const u8 *)s + 4 * in->slot_bytes);
        if (!(__atomic_load_n(&s->status, __ATOMIC_ACQUIRE) & USER)) break;
        bytes += s->length;
        if (n && (bytes > in->bytes_max || s->mac != mac)) break;
        mac = s->mac;
    }
    return n;
}

/* Packets of a long segment of equal RoCE packets, of which ``frame`` is the begin; 0: it is something else. */
static i64 packets(const Input *in, const Slot *s, const u8 *frame, i64 *step) {
    u16 vnet[VNET / 2];
    i64 payload = (i64)s->length - HEADERS;
    memcpy(vnet, frame - VNET, VNET);
    *step = vnet[2];
    if (vnet[0] != (1 | 5 << 8) || vnet[3] != UDP_AT || vnet[4] != 6 || !*step) return 0;
    if (s->status & VLAN || HEADERS + *step > in->frame_bytes_max) return 0;
    if (payload <= 0 || payload % *step || payload / *step > in->packets_max) return 0;
    if (be16(frame + 12) != 0x0800 || frame[14] != 0x45) return 0;
    if (frame[20] & 0x3F || frame[21] || frame[23] != 17 || be16(frame + 36) != 4791) return 0;
    return payload / *step;
}

/* Give packets the headers of their segment, with their own lengths, identifications and checksums. */
static void number(u8 *rows, i64 n, i64 length, const u8 *head) {
    u8 own[HEADERS];
    memcpy(own, head, HEADERS);
    u32 id = be16(own + 18);
    put16(own + 16, (u32)length - ETHERNET);
    put16(own + 18, 0);
    put16(own + 24, 0);
    put16(own + 38, (u32)length - UDP_AT);
    put16(own + 40, 0);
    u32 sum = words(own + 14, own + 34);
    for (i64 k = 0; k < n; k++, rows += length) {
        u32 ident = (id + (u32)k) & 0xFFFF;
        memcpy(rows, own, HEADERS);
        put16(rows + 18, ident);
        put16(rows + 24, 0xFFFF - folded(sum + ident));
    }
}

typedef struct {
    struct mmsghdr messages[MESSAGES];
    struct { u8 *rows; i64 n, length; } of[MESSAGES];
    u8 heads[MESSAGES][VNET + HEADERS];
    struct iovec pieces[PIECES];
    int n, used;
} Arrivals;

/* 0 if all that the slots told of has come. */
static int come(Input *in, Arrivals *a) {
    int done = 0, again = 1;
    while (done < a->n) {
        int got = recvmmsg((int)in->fd, a->messages + done, (unsigned)(a->n - done), 0, NULL);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && again && (errno == ENETDOWN || errno == ENODEV)) {
            in->heard = 1; /* it says so once, before it gives what it holds */
            again = 0;
            continue;
        }
        if (got <= 0) {
            in->error = got ? errno : EAGAIN;
            break;
        }
        for (int end = done + got; done < end; done++) {
            i64 n = a->of[done].n, length = a->of[done].length;
            if (a->messages[done].msg_len != (unsigned)(VNET + HEADERS + n * (length - HEADERS))) {
                in->error = -1;
                break;
            }
            number(a->of[done].rows, n, length, a->heads[done] + VNET);
        }
        if (in->error) break;
    }
    a->n = a->used = 0;
    return in->error != 0;
}

/* Takes the frames of slots from the next one on, equal neighbours together, as blocks: where they are in the
   ring, or in memory if they came as a long segment. Ends before what is not for here. */
void ports_take(Input *in, Block *blocks) {
    Arrivals a;
    Block *last = NULL;
    int in_memory = 0;
    u8 key[KEY], before[KEY];
    a.n = a.used = 0;
    in->blocks = in->unusual = in->frames = in->bytes = in->heard = in->error = 0;
    if (!in->ready) in->ready = ready(in);
    for (; in->next < in->ready; in->next++) {
        u8 *slot = in->ring + (in->at + in->next) * in->slot_bytes;
        const Slot *s = (const Slot *)slot;
        u8 *frame = slot + s->mac;
        i64 length = s->length, rows = 1, step;
        key_of(slot, key);
        if (s->status & COPY) {
            rows = packets(in, s, frame, &step);
            length = HEADERS + step;
            if (!rows || in->used + rows * length > in->memory_bytes) break;
            if (a.n == MESSAGES || a.used + rows + 1 > PIECES)
                if (come(in, &a)) return;
            struct msghdr *m = &a.messages[a.n].msg_hdr;
            u8 *to = in->memory + in->used;
            memset(m, 0, sizeof *m);
            m->msg_iov = a.pieces + a.used;
            m->msg_iovlen = (size_t)rows + 1;
            a.pieces[a.used++] = (struct iovec){a.heads[a.n], VNET + HEADERS};
            for (i64 k = 0; k < rows; k++)
                a.pieces[a.used++] = (struct iovec){to + k * length + HEADERS, (size_t)step};
            a.of[a.n].rows = to, a.of[a.n].n = rows, a.of[a.n].length = length;
            a.n++;
            in->used += rows * length;
            if (last && in_memory && last->length == length) last->rows += rows;
            else *(last = blocks + in->blocks++) = (Block){to, rows, length, length};
            in_memory = 1;
        } else {
            u16 vnet;
            memcpy(&vnet, frame - VNET, 2);
            if (s->status & VLAN || s->kept < s->length || vnet >> 8 || vnet & 1 || length > in->frame_bytes_max) break;
            if (last && !in_memory && !memcmp(key, before, KEY)) last->rows++;
            else *(last = blocks + in->blocks++) = (Block){frame, 1, in->slot_bytes, length};
            in_memory = 0;
            memcpy(before, key, KEY);
        }
        in->frames += rows;
        in->bytes += rows * length;
    }
    if (come(in, &a)) return;
    if (in->next < in->ready) {
        i64 end = in->next + 1;
        key_of(in->ring + (in->at + in->next) * in->slot_bytes, before);
        for (; end < in->ready; end++) {
            key_of(in->ring + (in->at + end) * in->slot_bytes, key);
            if (memcmp(key, before, KEY)) break;
        }
        in->unusual = end - in->next;
    }
}

#include "rings.c"
