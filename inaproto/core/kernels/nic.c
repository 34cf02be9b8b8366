/* The loops of the software NIC that see packets; part of kernels.c, which includes this file.

   Their twins in numpy are what the NIC does with frames in general (inaproto/core/rdma/nic.py) and how it
   builds them (inaproto/core/rdma/packetiser.py). */

/* ---- take: packets of the message that comes on a connection ---------------------------------------------------- */

enum { WRITE_FIRST = 6, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM };

/* Ethernet header to the last extension header, by opcode from WRITE_FIRST on. */
static const u8 write_width[] = {BTH_END + 16, BTH_END, BTH_END, BTH_END + 4, BTH_END + 16, BTH_END + 20};

/* What the packets of a connection have in common: addresses, protocol numbers, destination queue pair. */
static const u8 connection_bytes[COLUMNS] __attribute__((aligned(8))) = {
    [0 ... 5] = 0xFF,   [12 ... 14] = 0xFF, [20] = 0x3F,        [21] = 0xFF,
    [23] = 0xFF,        [26 ... 33] = 0xFF, [36 ... 37] = 0xFF, [47 ... 49] = 0xFF,
};

typedef struct {
    const u8 *key;          /* masked header of the connection's packets: COLUMNS bytes */
    i64 psn, mtu;           /* the next packet's number, and the payload of all but the last one */
    u8 *to;                 /* where its payload goes */
    i64 left;               /* bytes of the message that are to come */
    i64 starts;             /* whether the next packet begins the message */
    i64 may_end;            /* 0: not with these packets; 1: without an immediate; 2: with one, too */
    i64 block, row;         /* in and out: the next frame */
    i64 packets, nbytes;    /* out: packets taken, and their payload */
    i64 asked;              /* out: packets up to which an ACK is owed; 0: none is */
    i64 ended, imm;         /* out: whether the last one was the message's last; its immediate, or -1 */
} Taken;

static int of_connection(const u8 *frame, const u8 *key) {
    u64 differs = 0;
    for (int at = 0; at < COLUMNS; at += 8) {
        u64 own, mask, wanted;
        memcpy(&own, frame + at, 8);
        memcpy(&mask, connection_bytes + at, 8);
        memcpy(&wanted, key + at, 8);
        differs |= (own & mask) ^ wanted;
    }
    return !differs;
}

/* Copies payloads of frames from (block, row) on to where they go, as long as each is the next intact packet of one
   message; the first that is not, and a block with packets of others, are left to the general way. A message's end
   is the end. Nothing of a packet is used before its ICRC is known to be right. */
void kernels_take(const Block *blocks, i64 count, Taken *t) {
    i64 k = 0, nbytes = 0, left = t->left, row = t->row, asked = 0;
    int going = 1;
    t->ended = 0, t->imm = -1;
    for (; going && t->block < count; row = 0) {
        const Block *b = blocks + t->block;
        const i64 length = b->length, begin = row;
        int opcode = -1;
        i64 asking = -1; /* the opcode of packets among which one asks for an ACK */
        if (length < BTH_END + 4) break;
        for (i64 r = begin; r < b->rows; r++)
            if (!of_connection(b->data + r * b->stride, t->key)) going = 0;
        if (!going) break;
        for (; row < b->rows; row++) {
            const u8 *frame = b->data + row * b->stride;
            if (asking >= 0 && frame[42] != asking) asked = k, asking = -1;
            going = 0;
            opcode = frame[42];
            if (opcode < WRITE_FIRST || opcode > WRITE_ONLY_IMM) break;
            int starts = opcode == WRITE_FIRST || opcode >= WRITE_ONLY, ends = opcode >= WRITE_LAST;
            int with_imm = opcode == WRITE_LAST_IMM || opcode == WRITE_ONLY_IMM;
            i64 width = write_width[opcode - WRITE_FIRST], pad = frame[43] >> 4 & 3, bytes = length - 4 - width - pad;
            if (be16(frame + 16) != length - 14 || be16(frame + 38) != length - 34 || bytes < 0) break;
            if ((be32(frame + 50) & 0xFFFFFF) != ((u32)(t->psn + k) & 0xFFFFFF)) break;
            if (starts != (t->starts && !k) || (ends && t->may_end <= with_imm)) break;
            if (ends ? bytes != left || left > t->mtu : bytes != t->mtu || left <= t->mtu) break;
            u32 icrc;
            memcpy(&icrc, frame + length - 4, 4);
            if (~frame_crc(frame, width, frame + width, 0, (size_t)(bytes + pad)) != icrc) break;
            memcpy(t->to + nbytes, frame + width, (size_t)bytes);
            nbytes += bytes, left -= bytes, k++;
            if (frame[50] & 0x80) asking = opcode;
            if (ends) {
                t->ended = 1;
                if (with_imm) t->imm = be32(frame + width - 4);
                row++;
                break;
            }
            going = 1;
        }
        if (asking >= 0) asked = k;
        if (row < b->rows) break;
        t->block++;
    }
    t->row = row, t->packets = k, t->nbytes = nbytes, t->asked = asked;
}

/* ---- ack: one that comes alone, as on a lossless path ------------------------------------------------------------- */

enum { RC_ACK = 17, ACK_BYTES = BTH_END + 4 + 4 };

/* What the first of ``rows`` frames acknowledges on a connection, as PSN, syndrome and MSN of 32, 8 and 24 bits.
   -1, and it is left to the general way: it is something else, or damaged, or frames of others are behind it. */
i64 kernels_ack(const u8 *frame, i64 rows, i64 stride, i64 length, const u8 *key) {
    u32 icrc;
    if (length != ACK_BYTES || frame[42] != RC_ACK || frame[43] & 0x30) return -1;
    for (i64 row = 0; row < rows; row++)
        if (!of_connection(frame + row * stride, key)) return -1;
    if (be16(frame + 16) != length - 14 || be16(frame + 38) != length - 34) return -1;
    memcpy(&icrc, frame + length - 4, 4);
    if (~headers_crc(frame, length - 4) != icrc) return -1;
    return (i64)(be32(frame + 50) & 0xFFFFFF) << 32 | be32(frame + BTH_END);
}

/* ---- build: packets of a message -------------------------------------------------------------------------------- */

enum { PIECES_MAX = 4 };

typedef struct {
    const u8 *header;                   /* BTH_END bytes; what differs between packets is filled in */
    i64 psn, id;                        /* PSN and IP identification of the first one */
    i64 first, count, packets;          /* which packets of how many */
    i64 mtu, nbytes;                    /* the message's */
    i64 asks, asks_end, asks_step;      /* packets that ask for an ACK besides the last: from, to, how far apart */
    u64 va;
    i64 rkey, imm;                      /* no immediate: -1 */
    i64 pieces;
    struct { const u8 *data; i64 nbytes; } piece[PIECES_MAX];
} Order;

static void put16(u8 *to, u32 value) { to[0] = (u8)(value >> 8), to[1] = (u8)value; }
static void put32(u8 *to, u32 value) { value = __builtin_bswap32(value), memcpy(to, &value, 4); }

/* Total length, identification and checksum of IP, and the length of UDP, which is ``udp``. ``sum`` is that of the
   other words of the header of IP. */
static void put_lengths(u8 *frame, u32 udp, u32 id, u32 sum) {
    sum += 20 + udp + id;
    sum = (sum & 0xFFFF) + (sum >> 16);
    put16(frame + 16, 20 + udp);
    put16(frame + 18, id);
    put16(frame + 24, ~((sum & 0xFFFF) + (sum >> 16)));
    put16(frame + 38, udp);
}

/* The words of the header of IP that the packets of a flow have in common, added up. */
static u32 common_words(const u8 *header) {
    u32 sum = 0;
    for (int word = IP; word < IP + 20; word += 2)
        if (word != IP + 2 && word != IP + 4 && word != IP + 10) sum += be16(header + word);
    return sum;
}

enum { PACKETS_AHEAD = 2 };

/* Writes whole frames, one behind the other. */
void kernels_build(const Order *o, u8 *out) {
    i64 piece = 0, at = o->first * o->mtu, last = o->packets - 1, asks = o->asks;
    const u32 common = common_words(o->header);
    for (; piece < o->pieces && at >= o->piece[piece].nbytes; piece++) at -= o->piece[piece].nbytes;
    if (asks < o->first) asks += (o->first - asks + o->asks_step - 1) / o->asks_step * o->asks_step;
    for (i64 k = 0; k < o->count; k++) {
        i64 packet = o->first + k, left = o->nbytes - packet * o->mtu, bytes = packet == last ? left : o->mtu;
        int starts = packet == 0, ends = packet == last, with_imm = ends && o->imm >= 0, asking = ends;
        if (packet == asks) asking |= packet < o->asks_end, asks += o->asks_step;
        i64 pad = -bytes & 3, width = BTH_END + 16 * starts + 4 * with_imm;
        memcpy(out, o->header, BTH_END);
        put_lengths(out, (u32)(8 + 12 + width - BTH_END + bytes + pad + 4), (u32)(o->id + k) & 0xFFFF, common);
        out[42] = (u8)(starts ? (ends ? WRITE_ONLY + with_imm : WRITE_FIRST) : ends ? WRITE_LAST + with_imm : WRITE_MIDDLE);
        out[43] = (u8)(pad << 4);
        put32(out + 50, ((u32)(o->psn + k) & 0xFFFFFF) | (asking ? 0x80000000u : 0));
        if (starts) {
            put32(out + BTH_END, (u32)(o->va >> 32)), put32(out + BTH_END + 4, (u32)o->va);
            put32(out + BTH_END + 8, (u32)o->rkey), put32(out + BTH_END + 12, (u32)o->nbytes);
        }
        if (with_imm) put32(out + width - 4, (u32)o->imm);
        const u8 *frame = out;
        u32 crc;
        out += width;
        if (bytes && o->piece[piece].nbytes - at >= bytes) { /* all of it is in one place */
            const u8 *from = o->piece[piece].data + at;
            if (packet + PACKETS_AHEAD < last) prefetched(from + PACKETS_AHEAD * bytes, bytes);
            crc = frame_crc(frame, width, from, out, (size_t)bytes);
            out += bytes, at += bytes;
            if (at == o->piece[piece].nbytes) piece++, at = 0;
        } else {
            crc = headers_crc(frame, width);
            while (bytes) {
                i64 here = o->piece[piece].nbytes - at;
                if (here > bytes) here = bytes;
                crc = crc_copy(o->piece[piece].data + at, out, (size_t)here, crc);
                out += here, bytes -= here, at += here;
                if (at == o->piece[piece].nbytes) piece++, at = 0;
            }
        }
        memset(out, 0, (size_t)pad);
        crc = ~crc_more(out, (size_t)pad, crc);
        memcpy(out + pad, &crc, 4);
        out += pad + 4;
    }
}

/* An ACK packet without payload, with that AETH. */
void kernels_acknowledge(const u8 *header, i64 psn, i64 id, u32 aeth, u8 *out) {
    memcpy(out, header, BTH_END);
    put_lengths(out, 8 + ACK_BYTES - BTH_END + 12, (u32)id & 0xFFFF, common_words(header));
    out[42] = RC_ACK, out[43] = 0;
    put32(out + 50, (u32)psn & 0xFFFFFF);
    put32(out + BTH_END, aeth);
    u32 crc = ~headers_crc(out, ACK_BYTES - 4);
    memcpy(out + ACK_BYTES - 4, &crc, 4);
}
