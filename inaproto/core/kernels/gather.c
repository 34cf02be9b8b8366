/* Sums of arrays that lie in other processes; part of kernels.c, which includes this file. */

/* ---- gather: what is read of others is added, and given to them, while it is in the cache ----------------------- */

typedef struct { /* struct iovec */
    u8 *at;
    size_t bytes;
} Part;

/* As process_vm_readv and process_vm_writev: how many bytes went, or -1 and errno. */
typedef intptr_t Move(int process, const Part *here, unsigned long, const Part *there, unsigned long, unsigned long);

enum { GATHERED_MAX = 64 };

typedef struct {
    Move *read, *write;   /* without the second one sums stay here */
    i64 ranks, own, kind;
    const i64 *order;     /* in which ranks are added: (ranks,) */
    const i64 *processes; /* by rank, as are the next four */
    u8 *const *places;    /* of their arrays, each in its own process, */
    u8 *const *outs;      /* and where they have the sums, */
    u8 *const *number_at; /* and a number that a rank keeps there */
    const i64 *numbers;   /* as long as others may write to it */
    i64 *writes_to;       /* 1 + whom this rank may be about to write to, or 0; the others see it */
    u8 *rows;             /* memory for a block of each rank */
    i64 block;            /* bytes of a block: those of all ranks stay in the cache */
    const u8 *source;     /* the own array, */
    u8 *out;              /* and where the sum goes, which may be the same */
    u8 *const *seen;      /* by rank: its array and its sums where they are mapped here, or null */
    u8 *const *seen_out;
} Gather;

static i64 carried(Move *move, i64 process, u8 *here, u8 *there, i64 bytes) {
    const Part near = {here, (size_t)bytes}, far = {there, (size_t)bytes};
    intptr_t went = move((int)process, &near, 1, &far, 1, 0);
    return went == bytes ? 0 : went < 0 ? errno : EFAULT;
}

/* The sum of a block to ``rank``, if that still lets others write. Who takes that back looks, then, who writes: one
   of the two sees what the other has said. */
static i64 give(const Gather *g, i64 rank, u8 *sum, i64 at, i64 bytes) {
    i64 number = 0;
    __atomic_store_n(g->writes_to, 1 + rank, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    i64 fault = carried(g->read, g->processes[rank], (u8 *)&number, g->number_at[rank], 8);
    if (!fault && number != g->numbers[rank]) fault = number ? ESRCH : ECANCELED;
    if (!fault && g->seen_out[rank]) memcpy(g->seen_out[rank] + at, sum, (size_t)bytes);
    else if (!fault) fault = carried(g->write, g->processes[rank], sum, g->outs[rank] + at, bytes);
    __atomic_store_n(g->writes_to, 0, __ATOMIC_SEQ_CST);
    return fault;
}

/* Adds bytes ``at`` to ``end`` of all arrays. Returns -1, or a rank whose memory could not be used; why, as a number
   of errno, is in ``fault``. Then what comes before its block is added. */
i64 kernels_gather(const Gather *g, i64 at, i64 end, i64 *fault) {
    const u8 *from[GATHERED_MAX];
    for (; at < end; at += g->block) {
        i64 some = end - at < g->block ? end - at : g->block;
        for (i64 n = 0; n < g->ranks; n++) {
            i64 rank = g->order[n];
            const u8 *here = rank == g->own ? g->source : g->seen[rank];
            from[n] = here ? here + at : g->rows + rank * g->block;
            if (here) continue;
            *fault = carried(g->read, g->processes[rank], (u8 *)from[n], g->places[rank] + at, some);
            if (*fault) return rank;
        }
        u8 *to = g->out + at;
        kernels_reduce(from, g->ranks, &to, 1, g->kind, some);
        for (i64 rank = 0; g->write && rank < g->ranks; rank++) {
            *fault = rank == g->own ? 0 : give(g, rank, to, at, some);
            if (*fault) return rank;
        }
    }
    return -1;
}

/* What was stored before is seen by all before anything is read. */
void kernels_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
