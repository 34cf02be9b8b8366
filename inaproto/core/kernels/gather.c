/* Sums of arrays that lie in other processes; part of kernels.c, which includes this file. */

/* ---- gather: what is read of others is added while it is in the cache ------------------------------------------ */

typedef struct { /* struct iovec */
    u8 *at;
    size_t bytes;
} Part;

/* As process_vm_readv: how many bytes came, or -1 and errno. */
typedef intptr_t Read(int process, const Part *here, unsigned long, const Part *there, unsigned long, unsigned long);

enum { GATHERED_MAX = 64 };

typedef struct {
    Read *read;
    i64 ranks, own, kind;
    const i64 *order;     /* in which ranks are added: (ranks,) */
    const i64 *processes; /* by rank, as are the next two */
    u8 *const *places;    /* of their arrays, each in its own process */
    u8 *rows;             /* memory for a block of each rank */
    i64 block;            /* bytes of a block: those of all ranks stay in the cache */
    const u8 *source;     /* the own array, */
    u8 *out;              /* and where the sum goes, which may be the same */
} Gather;

/* Adds bytes ``at`` to ``end`` of all arrays. Returns -1, or the rank that could not be read; why, as a number of
   errno, is in ``fault``, and what comes before its block is added. */
i64 kernels_gather(const Gather *g, i64 at, i64 end, i64 *fault) {
    const u8 *from[GATHERED_MAX];
    for (; at < end; at += g->block) {
        i64 some = end - at < g->block ? end - at : g->block;
        for (i64 n = 0; n < g->ranks; n++) {
            i64 rank = g->order[n];
            if (rank == g->own) {
                from[n] = g->source + at;
                continue;
            }
            Part here = {g->rows + rank * g->block, (size_t)some}, there = {g->places[rank] + at, (size_t)some};
            intptr_t came = g->read((int)g->processes[rank], &here, 1, &there, 1, 0);
            if (came != some) {
                *fault = came < 0 ? errno : EFAULT;
                return rank;
            }
            from[n] = here.at;
        }
        u8 *to = g->out + at;
        kernels_reduce(from, g->ranks, &to, 1, g->kind, some);
    }
    return -1;
}
