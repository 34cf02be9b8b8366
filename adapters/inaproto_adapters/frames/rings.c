/* Rings of frames in memory that two processes share, compiled; a part of ``ports.c``.

   One process writes a ring and one reads it. Frames of one length lie as rows; a descriptor says where. The layout,
   and what each side may believe of the other, is said in ``shared_ring.py``, whose classes do the same without a
   compiler. What the other process can change is read once and then checked. */

enum {
    HEAD_AT = 0,       /* u64, by the writer: descriptors there have been */
    TAIL_AT = 64,      /* u64, by the reader: those of them that are done with */
    SLEEPS_AT = 128,   /* u32, by both: whether the reader wants a bell */
    TABLE_AT = 192,
    SLEEPS = 1,
    ALWAYS = 2,        /* a bell for every change: the reader cannot tell when it sleeps */
    CHUNKS_MAX = 256,
    SPARES_MIN = 2,    /* memory is lent while there are so many chunks for copies */
    LINE = 64,
    TAIL_BROKEN = 1,   /* faults of the other side */
    HEAD_BROKEN = 2,
    WHERE_BROKEN = 3,
};

typedef struct { /* in shared memory */
    u64 offset;
    u32 rows, length;
} Descriptor;

/* ---- write ------------------------------------------------------------------------------------------------------ */

typedef struct {
    u8 *control, *data;
    i64 slots, chunk_bytes, chunks;
    i64 head, tail;       /* as last written, as last read */
    i64 chunk, used;      /* where the next frames go */
    i64 spares, first, in_use;
    i64 frames, bytes;    /* out: what was taken; the rest had no room */
    i64 fault;            /* out: of the other side */
    i64 wakes;            /* out: the reader sleeps, and must get a bell */
    i64 spare[CHUNKS_MAX];
    struct { i64 chunk, until; } full[CHUNKS_MAX]; /* a ring: free when the reader is at ``until`` */
    i64 lent, lent_bytes; /* the chunk, and 1, in which memory is lent, or 0; bytes of it that are */
    i64 out_bytes;        /* lent since ``rings_settle`` */
    i64 left;             /* chunks before it, as many as are in ``behind``: lent since then, too */
    i64 behind[CHUNKS_MAX];
} Writer;

static void look_back(Writer *w) {
    u64 tail = __atomic_load_n((u64 *)(w->control + TAIL_AT), __ATOMIC_ACQUIRE);
    if (tail - (u64)w->tail > (u64)(w->head - w->tail)) {
        w->fault = TAIL_BROKEN;
        return;
    }
    w->tail = (i64)tail;
    while (w->in_use && w->full[w->first].until <= w->tail) {
        w->spare[w->spares++] = w->full[w->first].chunk;
        w->first = (w->first + 1) % CHUNKS_MAX;
        w->in_use--;
    }
}

/* 0 if there is none. */
static int next_chunk(Writer *w, i64 head) {
    if (!w->spares) look_back(w);
    if (!w->spares) return 0;
    i64 at = (w->first + w->in_use++) % CHUNKS_MAX;
    w->full[at].chunk = w->chunk, w->full[at].until = head;
    w->chunk = w->spare[--w->spares], w->used = 0;
    return 1;
}

/* Memory for frames of ``nbytes`` in all, which ``rings_push`` sends without a copy; returns where it is in the ring, or
   -1 if there is none. It is the caller's until ``rings_settle``. */
i64 rings_lend(Writer *w, i64 nbytes) {
    const i64 size = (nbytes + LINE - 1) / LINE * LINE;
    if (size > w->chunk_bytes) return -1;
    if (!w->out_bytes) {
        look_back(w); /* which finds its fault in ``rings_push``, too */
        if (w->tail == w->head) w->lent_bytes = 0;
    }
    if (!w->lent || w->lent_bytes + size > w->chunk_bytes) {
        if (w->spares < SPARES_MIN) return -1;
        if (w->lent) w->behind[w->left++] = w->lent - 1;
        w->lent = w->spare[--w->spares] + 1, w->lent_bytes = 0;
    }
    const i64 at = (w->lent - 1) * w->chunk_bytes + w->lent_bytes;
    w->lent_bytes += size, w->out_bytes += size;
    return at;
}

/* What was lent and is to be sent has been. */
void rings_settle(Writer *w) {
    for (i64 k = 0; k < w->left; k++) {
        i64 at = (w->first + w->in_use++) % CHUNKS_MAX;
        w->full[at].chunk = w->behind[k], w->full[at].until = w->head;
    }
    w->left = w->out_bytes = 0;
}

/* Copies the frames of ``n`` blocks behind those that are there, as many as have room; those in memory that was lent
   stay where they are. A reader that sleeps is told of once: until it has slept again. */
void rings_push(Writer *w, const Block *blocks, i64 n) {
    Descriptor *table = (Descriptor *)(w->control + TABLE_AT), *last = 0, own = {0, 0, 0};
    i64 begin = w->head, head = begin;
    w->frames = w->bytes = w->fault = w->wakes = 0;
    look_back(w);
    if (w->fault) return;
    if (w->tail == head) w->used = 0;
    for (const Block *block = blocks; block < blocks + n; block++) {
        i64 length = block->length;
        const u8 *from = block->at;
        const int is_there = block->stride == length && from >= w->data && from < w->data + w->chunks * w->chunk_bytes;
        for (i64 left = block->rows, rows; left; left -= rows, from += rows * block->stride) {
            i64 fit = is_there ? left : (w->chunk_bytes - w->used) / length;
            if (fit < left && (!fit || left * length <= w->chunk_bytes) && next_chunk(w, head))
                fit = w->chunk_bytes / length;
            if (!fit || w->fault) goto full;
            rows = left < fit ? left : fit;
            u64 offset = (u64)(is_there ? from - w->data : w->chunk * w->chunk_bytes + w->used);
            if (last && own.length == length && own.offset + (u64)own.rows * own.length == offset) {
                own.rows += (u32)rows;
            } else {
                if (head - w->tail == w->slots) look_back(w);
                if (head - w->tail == w->slots) goto full;
                last = table + head++ % w->slots;
                own = (Descriptor){offset, (u32)rows, (u32)length};
            }
            *last = own;
            u8 *to = w->data + offset;
            if (!is_there && block->stride == length) memcpy(to, from, (size_t)(rows * length));
            else if (!is_there)
                for (i64 k = 0; k < rows; k++) memcpy(to + k * length, from + k * block->stride, (size_t)length);
            if (!is_there) w->used += rows * length;
            w->frames += rows;
            w->bytes += rows * length;
        }
    }
full:
    if (head == begin) return;
    w->head = head;
    __atomic_store_n((u64 *)(w->control + HEAD_AT), (u64)head, __ATOMIC_RELEASE);
    /* Either the reader sees the new head before it sleeps, or this sees that it sleeps. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    u32 *sleeps = (u32 *)(w->control + SLEEPS_AT), state = __atomic_load_n(sleeps, __ATOMIC_RELAXED);
    if (state == SLEEPS) state = __atomic_exchange_n(sleeps, 0, __ATOMIC_RELAXED);
    w->wakes = state != 0;
}

/* ---- read ------------------------------------------------------------------------------------------------------- */

typedef struct {
    u8 *control;
    i64 slots, data_bytes, length_min, length_max;
    i64 blocks_max, bytes_max; /* of one call; one descriptor may be more bytes */
    i64 tail;                  /* the next descriptor; those before it are done with at the next call */
    i64 asleep;                /* the writer was told to ring */
    i64 blocks, frames, bytes; /* out */
    i64 fault;                 /* out: of the other side */
} Reader;

/* Finds the frames that have come: offset, rows and length of each block. If there are none the writer will ring. */
void rings_take(Reader *r, i64 *found) {
    u32 *sleeps = (u32 *)(r->control + SLEEPS_AT);
    const Descriptor *table = (Descriptor *)(r->control + TABLE_AT);
    r->blocks = r->frames = r->bytes = r->fault = 0;
    if (r->asleep) {
        __atomic_store_n(sleeps, 0, __ATOMIC_RELAXED);
        r->asleep = 0;
    }
    __atomic_store_n((u64 *)(r->control + TAIL_AT), (u64)r->tail, __ATOMIC_RELEASE);
    u64 *at = (u64 *)(r->control + HEAD_AT), ready = __atomic_load_n(at, __ATOMIC_ACQUIRE) - (u64)r->tail;
    if (!ready) {
        __atomic_store_n(sleeps, SLEEPS, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        ready = __atomic_load_n(at, __ATOMIC_ACQUIRE) - (u64)r->tail;
        r->asleep = !ready;
        if (!ready) return;
        __atomic_store_n(sleeps, 0, __ATOMIC_RELAXED);
    }
    if (ready > (u64)r->slots) {
        r->fault = HEAD_BROKEN;
        return;
    }
    i64 *last = found - 3;
    for (; ready && r->bytes < r->bytes_max; ready--) {
        const Descriptor *d = table + r->tail % r->slots;
        u64 offset = __atomic_load_n(&d->offset, __ATOMIC_RELAXED);
        i64 rows = __atomic_load_n(&d->rows, __ATOMIC_RELAXED), length = __atomic_load_n(&d->length, __ATOMIC_RELAXED);
        if (length < r->length_min || length > r->length_max || !rows || offset > (u64)r->data_bytes ||
            (u64)rows * (u64)length > (u64)r->data_bytes - offset) {
            r->fault = WHERE_BROKEN;
            return;
        }
        if (r->blocks && last[2] == length && last[0] + last[1] * length == (i64)offset) {
            last[1] += rows;
        } else {
            if (r->blocks == r->blocks_max) return;
            last += 3;
            last[0] = (i64)offset, last[1] = rows, last[2] = length;
            r->blocks++;
        }
        r->tail++;
        r->frames += rows;
        r->bytes += rows * length;
    }
}
