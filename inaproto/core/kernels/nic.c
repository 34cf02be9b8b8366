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
    i64 may_end_with_imm;   /* whether a receive is posted */
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
            if (starts != (t->starts && !k) || (with_imm && !t->may_end_with_imm)) break;
            if (ends ? bytes != left || left > t->mtu : bytes != t->mtu || left <= t->mtu) break;
            u8 masked[8 + HEADER_MAX];
            memset(masked, 0xFF, 8);
            memcpy(masked + 8, frame + IP, (size_t)(width - IP));
            masked[8 + 15 - IP] = masked[8 + 22 - IP] = masked[8 + 24 - IP] = masked[8 + 25 - IP] = 0xFF;
            masked[8 + 40 - IP] = masked[8 + 41 - IP] = masked[8 + 46 - IP] = 0xFF;
            u32 icrc, crc = crc_more(masked, (size_t)(8 + width - IP), ~0u);
            memcpy(&icrc, frame + length - 4, 4);
            if (~crc_more(frame + width, (size_t)(bytes + pad), crc) != icrc) break;
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
