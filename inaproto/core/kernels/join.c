/* The packets of one flow into the messages of its ring; part of kernels.c, which includes this file. */

/* ---- join: packets of a rank into messages that are open, and messages that are like those before them ---------- */

enum { FIRST_OPCODE = 6, FIRST_WIDTH = 70, OP_INDEX_AT = 16, MSG_ID_AT = 20, RANK_AT = 24, SIZE_AT = 26, PARTS_MAX = 16 };

typedef struct {
    Region *const *regions; /* 0: it has had no message yet */
    i64 count;
    i64 first_serial, next_serial; /* messages before the first one are stale; around the next one ids are unwrapped */
    i64 id_mask, window;           /* a message is opened if it is less than that from the next one */
    i64 like;                      /* number of messages that are opened here; 0: none is */
    u8 *payload;                   /* memory for the next one's payloads; 0: there is none */
    const u8 *constant;            /* headers of such messages less serial numbers and rank */
} Ring;

typedef struct {
    Ring *ring;
    i64 rank, psn_mask;
    const u8 *key, *macs; /* what all its headers have in common, masked, and their Ethernet addresses */
} Inlet;

typedef struct { /* packets of one message that follow each other */
    i64 region, offset, psn, opens;
    i64 taken, right, past, full, full_past; /* as ``Place`` has them */
} Joined;

typedef struct {
    const Scan *scan;
    const Inlet *inlet;
    i64 from, to;     /* frames in the order of classes */
    i64 taken, parts; /* out: frames dealt with, and what came of them */
    Joined part[PARTS_MAX];
} Join;

/* Whether a header is just what the other ranks sent. */
static int agrees(const Region *r, const u8 *ina) {
    if (memcmp(ina, r->agreed, RANK_AT)) return 0;
    return !memcmp(ina + SIZE_AT, r->agreed + RANK_AT, (size_t)r->own - SIZE_AT);
}

/* Makes ``r`` the region of a message like the one before it, whose first packet that is. */
static int opened(const Join *j, Ring *g, Region *r, i64 serial, i64 at) {
    const Scan *s = j->scan;
    const u8 *ina = s->frame[s->order[at]] + FIRST_WIDTH;
    if (!g->payload || r->payload || r->like != g->like || serial <= r->serial || serial >= g->next_serial + g->window) return 0;
    if (memcmp(ina, g->constant, OP_INDEX_AT)) return 0;
    if (memcmp(ina + SIZE_AT, g->constant + OP_INDEX_AT, (size_t)r->own - SIZE_AT)) return 0;
    if (!kernels_intact(s, at, r->layouts)) return 0;
    memcpy(r->agreed, ina, RANK_AT);
    memcpy(r->agreed + RANK_AT, ina + SIZE_AT, (size_t)r->own - SIZE_AT);
    memset(r->seen, 0, (size_t)(r->ranks * r->slots));
    memset(r->done, 0, (size_t)r->slots);
    if (r->kind) memset(r->summed, 0, (size_t)r->slots * sizeof *r->summed);
    for (i64 rank = 0; rank < r->ranks; rank++) r->psn0[rank] = -1;
    r->serial = serial;
    r->payload = g->payload;
    g->payload = 0;
    return 1;
}

/* The region that a first packet belongs to; -1: none, or it takes more than this to say so. */
static i64 region_of_first(const Join *j, i64 at, u32 psn, i64 *opens) {
    const i64 rank = j->inlet->rank, length = j->scan->length[j->scan->order[at]];
    const u8 *ina = j->scan->frame[j->scan->order[at]] + FIRST_WIDTH;
    Ring *g = j->inlet->ring;
    if (length < FIRST_WIDTH + SIZE_AT || be16(ina + RANK_AT) != rank) return -1;
    const i64 half = (g->id_mask + 1) >> 1, next = g->next_serial;
    const i64 serial = next + (((i64)be32(ina + MSG_ID_AT) - next + half) & g->id_mask) - half;
    if (serial < g->first_serial || serial < 0) return -1;
    const i64 index = serial % g->count;
    Region *r = g->regions[index];
    if (!r || length < FIRST_WIDTH + r->own) return -1;
    if (r->serial != serial) return (*opens = opened(j, g, r, serial, at)) ? index : -1;
    if (!r->payload || !agrees(r, ina)) return -1;
    return r->psn0[rank] < 0 || r->psn0[rank] == psn ? index : -1;
}

/* The one region whose message has that packet of a rank, not the first one; -1: none, or several. */
static i64 region_of_next(const Inlet *in, u32 psn) {
    i64 found = -1;
    for (i64 index = 0; index < in->ring->count; index++) {
        const Region *r = in->ring->regions[index];
        if (!r || r->psn0[in->rank] < 0) continue;
        const i64 offset = (psn - (u32)r->psn0[in->rank]) & (u32)in->psn_mask;
        if (offset >= r->packets) continue;
        if (found >= 0 || offset == 0 || !r->payload) return -1;
        found = index;
    }
    return found;
}

/* Takes frames as long as they are the next packets of messages that are open, or open one like those before it: one
   in a call. What is not exactly that is left to others, with nothing changed. */
void kernels_join(Join *j) {
    const Scan *s = j->scan;
    const Inlet *in = j->inlet;
    i64 at = j->from;
    for (j->parts = 0; at < j->to && j->parts < PARTS_MAX; j->parts++) {
        const u8 *frame = s->frame[s->order[at]];
        if (s->length[s->order[at]] < BTH_END) break;
        const u32 psn = be32(frame + 50) & (u32)in->psn_mask;
        const int is_first = frame[42] == FIRST_OPCODE;
        i64 opens = 0, index = is_first ? region_of_first(j, at, psn, &opens) : region_of_next(in, psn);
        if (index < 0) break;
        Region *r = in->ring->regions[index];
        const i64 offset = is_first ? 0 : (psn - (u32)r->psn0[in->rank]) & (u32)in->psn_mask;
        Place p = {s, at, j->to, r, in->rank, offset, psn, in->psn_mask, 0, 0, 0, 0, 0};
        place(&p);
        if (!p.taken && !opens) break;
        if (is_first) r->psn0[in->rank] = psn;
        j->part[j->parts] = (Joined){index, offset, psn, opens, p.taken, p.right, p.past, p.full, p.full_past};
        at += p.taken;
        if (!p.taken) {
            j->parts++;
            break;
        }
    }
    j->taken = at - j->from;
}

/* As ``kernels_scan``; and takes what it can if all frames are of that flow. */
i64 kernels_receive(const Blocks *told, Join *j) {
    const i64 classes = kernels_scan(told);
    j->from = j->to = 0;
    if (classes == 1 && !memcmp(j->scan->key, j->inlet->key, COLUMNS) && !memcmp(j->scan->head, j->inlet->macs, 12))
        j->to = j->scan->frames;
    kernels_join(j);
    return classes;
}
