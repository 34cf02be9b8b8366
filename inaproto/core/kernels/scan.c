/* The frames of a receive, told apart; part of kernels.c, which includes this file. */

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
    i64 count, behind; /* the arrays' fields are so far behind the addresses */
    const u8 *arrays[];
} Told;

/* Frames of at least ``shortest`` bytes; of others, and of arrays that are not what can be read, no rows. */
void kernels_read(const Told *told, Block *blocks, int shortest) {
    for (i64 k = 0; k < told->count; k++) {
        const Array *a = (const Array *)(const void *)(told->arrays[k] + told->behind);
        blocks[k] = (Block){0};
        if (a->dimensions == 2 && a->shape[1] >= shortest && a->strides[1] == 1)
            blocks[k] = (Block){a->data, a->shape[0], a->strides[0], a->shape[1]};
    }
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
