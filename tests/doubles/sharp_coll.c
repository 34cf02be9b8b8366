/* A double of libsharp_coll for tests: the documented calls over shared memory, with an Aggregation Manager that
 * knows jobs, trees, locks and quotas. It is strict where the library may be lenient, and does on demand what
 * goes wrong at a site. All that several processes share is in the file that SHARP_DOUBLE_AM names. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sharp/api/sharp_coll.h"
#include "sharp_manager.h"
#include "sharp_sums.h"

/* ---- contexts ---- */

static int is_live(const struct sharp_coll_context *context) {
    struct sharp_coll_context *c;
    pthread_mutex_lock(&here);
    for (c = contexts; c && c != context; c = c->next) { }
    pthread_mutex_unlock(&here);
    return c != 0;
}

struct hello { int32_t code, at; };

static int oob_start(struct sharp_coll_context *c, uint64_t id, const char *device, struct hello *hello) {
    uint64_t ids[RANKS] = { 0 };
    hello->at = -1;
    if (c->oob.gather(c->oob_ctx, 0, &id, c->rank ? 0 : ids, sizeof id)) return SHARP_COLL_EOOB;
    if (!c->rank) {
        hello->code = 0;
        for (int r = 0; r < c->size; r++)
            if (ids[r] != id) hello->code = SHARP_COLL_EINVAL;
        if (!hello->code) {
            lock();
            hello->code = create_job(id, c->size, device, &hello->at);
            if (!hello->code) { am->jobs[hello->at].members = 1; am->jobs[hello->at].pids[0] = getpid(); }
            unlock();
        }
    }
    struct hello told = *hello;
    if (c->oob.bcast(c->oob_ctx, &told, sizeof told, 0)) return SHARP_COLL_EOOB;
    if (c->rank) {
        *hello = told;
        if (!told.code) {
            lock();
            am->jobs[told.at].members++;
            am->jobs[told.at].pids[c->rank] = getpid();
            unlock();
        }
    }
    if (hello->code) return hello->code;
    return c->oob.barrier(c->oob_ctx) ? SHARP_COLL_EOOB : 0;
}

static int map_data(struct sharp_coll_context *c) {
    char name[300];
    data_name(&am->jobs[c->job], name, sizeof name);
    c->room = (size_t)64 << 20;
    size_t bytes = c->room * (size_t)c->size * SLOTS;
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return SHARP_COLL_ENOMEM;
    c->data = MAP_FAILED;
    if (!ftruncate(fd, (off_t)bytes)) c->data = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return c->data == MAP_FAILED ? SHARP_COLL_ENOMEM : 0;
}

int sharp_coll_init(struct sharp_coll_init_spec *spec, struct sharp_coll_context **out) {
    if (!spec || !out || !map_am() || spec->world_size < 1 || spec->world_size > RANKS) return SHARP_COLL_EINVAL;
    if (spec->world_rank < 0 || spec->world_rank >= spec->world_size) return SHARP_COLL_EINVAL;
    if (!spec->oob_colls.bcast || !spec->oob_colls.barrier || !spec->oob_colls.gather) return SHARP_COLL_EINVAL;
    for (int i = 0; i < 4; i++) if (spec->reserved[i]) return SHARP_COLL_EINVAL;
    int code = fault("sharp_coll_init", spec->world_rank);
    if (code) return code;
    rest_ms(294 * am->set.delay_permille / 1000);
    struct sharp_coll_context *c = calloc(1, sizeof *c);
    struct hello hello;
    c->rank = spec->world_rank, c->size = spec->world_size;
    c->oob = spec->oob_colls, c->oob_ctx = spec->oob_ctx, c->timeout = spec->config.coll_timeout;
    code = oob_start(c, spec->job_id, spec->config.ib_dev_list, &hello);
    c->job = hello.at;
    if (!code) code = fault("sharp_coll_init late", c->rank);
    if (!code) code = map_data(c);
    if (code) {
        lock();
        if (hello.at >= 0 && !hello.code) leave_job(hello.at, c->rank);
        unlock();
        free(c);
        return code;
    }
    pthread_mutex_lock(&here);
    c->next = contexts;
    contexts = c;
    pthread_mutex_unlock(&here);
    *out = c;
    return 0;
}

int sharp_coll_finalize(struct sharp_coll_context *c) {
    if (!is_live(c) || c->comm) return SHARP_COLL_EINVAL;
    for (struct region *g = regions; g; g = g->next) if (g->owner == c) return SHARP_COLL_EINVAL;
    int code = fault("sharp_coll_finalize", c->rank);
    rest_ms(125 * am->set.delay_permille / 1000);
    const char *stats = getenv("SHARP_COLL_STATS_DUMP_MODE");
    if (!code && stats && !strcmp(stats, "2") && c->oob.barrier(c->oob_ctx)) code = SHARP_COLL_EOOB;
    pthread_mutex_lock(&here);
    struct sharp_coll_context **at = &contexts;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&here);
    munmap(c->data, c->room * (size_t)c->size * SLOTS);
    lock();
    leave_job(c->job, c->rank);
    unlock();
    free(c);
    return code;
}

int sharp_coll_caps_query(struct sharp_coll_context *c, struct sharp_coll_caps *caps) {
    if (!is_live(c) || !caps) return SHARP_COLL_EINVAL;
    int code = fault("sharp_coll_caps_query", c->rank);
    if (code) return code;
    int preset = (int)am->set.preset; /* 0: before 3.0, 1: HDR, 2: NDR */
    memset(caps, 0, sizeof *caps);
    caps->sharp_pkt_version = preset > 0;
    caps->support_mask.dtypes = preset == 2 ? 0xfff : preset == 1 ? 0x3ff : 0x1ff;
    caps->support_mask.tag_dtypes = 0xf;
    caps->support_mask.reduce_ops = 0x7;
    caps->support_mask.feature_mask = preset ? SHARP_FEATURE_LLT | SHARP_FEATURE_SAT : SHARP_FEATURE_LLT;
    caps->resources.max_osts = (int)am->set.osts;
    caps->resources.user_data_per_ost = preset ? 2048 : 256;
    caps->resources.max_groups = caps->resources.max_group_channels = 1;
    caps->resources.osts_per_group = 16;
    return 0;
}

int sharp_coll_progress(struct sharp_coll_context *c) { return is_live(c) ? 0 : SHARP_COLL_EINVAL; }

int sharp_coll_dump_stats(struct sharp_coll_context *c) { return is_live(c) ? 0 : SHARP_COLL_EINVAL; }

int sharp_coll_comm_init(struct sharp_coll_context *c, struct sharp_coll_comm_init_spec *spec,
                         struct sharp_coll_comm **out) {
    if (!is_live(c) || !spec || !out || spec->size != c->size || spec->rank != c->rank) return SHARP_COLL_EINVAL;
    int code = fault("sharp_coll_comm_init", c->rank);
    if (code) return code;
    if (c->comm) return SHARP_COLL_EGROUP_ALLOC;
    int32_t rank = spec->rank, all[RANKS], told = 0;
    if (c->oob.gather(spec->oob_ctx, 0, &rank, rank ? 0 : all, sizeof rank)) return SHARP_COLL_EOOB;
    if (!rank) {
        for (int r = 0; r < c->size; r++) if (all[r] != r) told = SHARP_COLL_EGROUP_JOIN;
        lock();
        if (!told && am->set.quota < 1) told = SHARP_COLL_EQUOTA;
        if (!told && am->set.lock_mode == 0 && am->set.lock_on_comm_init) told = lock_tree(&am->jobs[c->job]);
        unlock();
    }
    int is_locked = !rank && !told && am->set.lock_mode == 0 && am->set.lock_on_comm_init;
    int oob = c->oob.bcast(spec->oob_ctx, &told, sizeof told, 0);
    if (!oob && !told) oob = c->oob.barrier(spec->oob_ctx);
    code = oob ? SHARP_COLL_EOOB : told ? told : fault("sharp_coll_comm_init late", c->rank);
    if (code) {
        lock();
        if (is_locked) am->jobs[c->job].locks--;
        unlock();
        return code;
    }
    struct sharp_coll_comm *comm = calloc(1, sizeof *comm);
    comm->context = c;
    *out = c->comm = comm;
    return 0;
}

static int is_comm(struct sharp_coll_comm *comm) {
    struct sharp_coll_context *c;
    pthread_mutex_lock(&here);
    for (c = contexts; c && c->comm != comm; c = c->next) { }
    pthread_mutex_unlock(&here);
    return comm && c;
}

int sharp_coll_comm_destroy(struct sharp_coll_comm *comm) {
    if (!is_comm(comm) || comm->outstanding) return SHARP_COLL_EINVAL;
    struct sharp_coll_context *c = comm->context;
    int code = fault("sharp_coll_comm_destroy", c->rank);
    lock();
    if (!c->rank && am->set.lock_mode == 0 && am->jobs[c->job].locks) am->jobs[c->job].locks--;
    unlock();
    c->comm = 0;
    free(comm);
    return code;
}

/* ---- memory ---- */

int sharp_coll_reg_mr(struct sharp_coll_context *c, void *at, size_t bytes, void **mr) {
    if (!is_live(c) || !at || !bytes || !mr) return SHARP_COLL_EINVAL;
    int code = fault("sharp_coll_reg_mr", c->rank);
    if (code) return code;
    pthread_mutex_lock(&here);
    for (struct region *g = regions; g; g = g->next)
        if (g->owner == c && g->at < (char *)at + bytes && (char *)at < g->at + g->bytes) code = SHARP_COLL_EINVAL;
    if (!code) {
        struct region *made = malloc(sizeof *made);
        *made = (struct region){ regions, c, at, bytes };
        *mr = regions = made;
    }
    pthread_mutex_unlock(&here);
    return code;
}

int sharp_coll_reg_mr_v2(struct sharp_coll_context *c, void *at, size_t bytes,
                         const struct sharp_coll_reg_params *params, void **mr) {
    return params && params->field_mask ? SHARP_COLL_ENOT_SUPP : sharp_coll_reg_mr(c, at, bytes, mr);
}

int sharp_coll_dereg_mr(struct sharp_coll_context *c, void *mr) {
    if (!is_live(c)) return SHARP_COLL_EINVAL;
    int code = fault("sharp_coll_dereg_mr", c->rank);
    pthread_mutex_lock(&here);
    struct region **at = &regions;
    while (*at && *at != mr) at = &(*at)->next;
    struct region *found = *at;
    if (found && found->owner == c) *at = found->next, free(found);
    else code = SHARP_COLL_EINVAL;
    pthread_mutex_unlock(&here);
    return code;
}

static int lies_in(struct sharp_coll_context *c, const struct sharp_coll_data_desc *d, size_t bytes) {
    int found = 0;
    if (d->type != SHARP_DATA_BUFFER || d->mem_type != SHARP_MEM_TYPE_HOST || d->buffer.length < bytes) return 0;
    pthread_mutex_lock(&here);
    for (struct region *g = regions; g; g = g->next)
        found |= g == d->buffer.mem_handle && g->owner == c && (char *)d->buffer.ptr >= g->at &&
                 (char *)d->buffer.ptr + d->buffer.length <= g->at + g->bytes;
    pthread_mutex_unlock(&here);
    return found;
}

/* ---- operations ---- */

static char *area(struct sharp_coll_context *c, uint64_t seq) {
    return c->data + (size_t)(seq % SLOTS) * c->room * (size_t)c->size;
}

static void leave_slot(struct job *job, struct slot *s, int size) {
    if (++s->left < size) return;
    if (s->locks) job->locks--;
    memset(s, 0, sizeof *s);
}

/* Joins the operation where its slot is free or has the same one. Returns 1 when it has arrived, 0 to try
 * again later, or a code. */
static int arrive(struct request *q) {
    struct sharp_coll_context *c = q->comm->context;
    struct job *job = &am->jobs[c->job];
    int code = 0;
    lock();
    struct slot *s = &job->slots[q->seq % SLOTS];
    if (s->seq && s->seq != q->seq + 1) code = 1;
    else if (!s->seq) {
        *s = (struct slot){ .seq = q->seq + 1, .dtype = q->spec.dtype, .op = q->spec.op, .kind = q->kind,
                            .length = q->bytes };
        int is_streaming = q->spec.aggr_mode == SHARP_AGGREGATION_STREAMING ||
                           (q->spec.aggr_mode == SHARP_AGGREGATION_NONE && q->bytes > 16384);
        if (is_streaming && am->set.lock_mode == 1) s->code = lock_tree(job), s->locks = !s->code;
        if (is_lost(job)) s->code = SHARP_COLL_ECONN_TREE;
    } else if (s->dtype != (int)q->spec.dtype || s->op != (int)q->spec.op || s->kind != q->kind || s->length != q->bytes)
        code = SHARP_COLL_EINVAL;
    if (!code && s->code) {
        code = s->code;
        leave_slot(job, s, c->size);
    }
    unlock();
    if (code) return code == 1 ? 0 : code;
    if (q->bytes) memcpy(area(c, q->seq) + (size_t)c->rank * c->room, q->spec.sbuf_desc.buffer.ptr, q->bytes);
    lock();
    s->arrived++;
    unlock();
    return 1;
}

static int post(struct sharp_coll_comm *comm, struct request wish, const char *function, void **handle) {
    if (!is_comm(comm) || !handle) return SHARP_COLL_EINVAL;
    int code = fault(function, comm->context->rank);
    if (code) return code;
    struct request *q = malloc(sizeof *q);
    *q = wish;
    q->comm = comm;
    q->seq = comm->next_seq;
    code = arrive(q);
    if (code < 0) {
        /* All ranks are refused this one. */
        if (code == SHARP_COLL_ELOCK_FAILED || code == SHARP_COLL_ECONN_TREE) comm->next_seq++;
        free(q);
        return code;
    }
    comm->next_seq++;
    comm->outstanding++;
    q->state = code;
    q->fate = fault("complete", comm->context->rank);
    q->ready_at = q->fate >= LATE ? now_ns() + (uint64_t)(q->fate - LATE) * 1000000u : 0;
    pthread_mutex_lock(&here);
    q->next = requests;
    requests = q;
    pthread_mutex_unlock(&here);
    *handle = q;
    return 0;
}

static int check(struct sharp_coll_comm *comm, const struct sharp_coll_reduce_spec *spec, size_t *bytes) {
    struct sharp_coll_caps caps;
    if (!is_comm(comm) || !spec) return SHARP_COLL_EINVAL;
    if (sharp_coll_caps_query(comm->context, &caps)) return SHARP_COLL_ERROR;
    if (spec->dtype < 0 || !(caps.support_mask.dtypes >> spec->dtype & 1)) return SHARP_COLL_ENOT_SUPP;
    if (spec->op < 0 || !(caps.support_mask.reduce_ops >> spec->op & 1)) return SHARP_COLL_ENOT_SUPP;
    if (spec->aggr_mode == SHARP_AGGREGATION_STREAMING && !(caps.support_mask.feature_mask & SHARP_FEATURE_SAT))
        return SHARP_COLL_ENOT_SUPP;
    if ((unsigned)spec->aggr_mode > SHARP_AGGREGATION_STREAMING || spec->reserved[0] || spec->reserved[1])
        return SHARP_COLL_EINVAL;
    *bytes = spec->length * bytes_of(spec->dtype);
    if (!*bytes || *bytes > comm->context->room) return SHARP_COLL_EINVAL;
    if (!lies_in(comm->context, &spec->sbuf_desc, *bytes)) return SHARP_COLL_EINVAL;
    return lies_in(comm->context, &spec->rbuf_desc, *bytes) ? 0 : SHARP_COLL_EINVAL;
}

int sharp_coll_do_allreduce_nb(struct sharp_coll_comm *comm, struct sharp_coll_reduce_spec *spec, void **handle) {
    size_t bytes = 0;
    int code = check(comm, spec, &bytes);
    if (code) return code;
    return post(comm, (struct request){ .spec = *spec, .bytes = bytes, .root = -1 }, "sharp_coll_do_allreduce_nb",
                handle);
}

int sharp_coll_do_reduce_nb(struct sharp_coll_comm *comm, struct sharp_coll_reduce_spec *spec, void **handle) {
    size_t bytes = 0;
    int code = check(comm, spec, &bytes);
    if (code) return code;
    return post(comm, (struct request){ .spec = *spec, .bytes = bytes, .root = spec->root, .kind = 1 },
                "sharp_coll_do_reduce_nb", handle);
}

int sharp_coll_do_barrier_nb(struct sharp_coll_comm *comm, void **handle) {
    return post(comm, (struct request){ .kind = 2, .root = -1 }, "sharp_coll_do_barrier_nb", handle);
}

int sharp_coll_do_bcast_nb(struct sharp_coll_comm *comm, struct sharp_coll_bcast_spec *spec, void **handle) {
    if (!is_comm(comm) || !spec || spec->root < 0 || spec->root >= comm->context->size) return SHARP_COLL_EINVAL;
    if (!lies_in(comm->context, &spec->buf_desc, spec->size)) return SHARP_COLL_EINVAL;
    struct request wish = { .bytes = spec->size, .kind = 3, .root = spec->root };
    wish.spec.sbuf_desc = wish.spec.rbuf_desc = spec->buf_desc;
    return post(comm, wish, "sharp_coll_do_bcast_nb", handle);
}

int sharp_coll_req_test(void *handle) {
    struct request *q = handle;
    struct sharp_coll_context *c = q->comm->context;
    if (q->state == 2) return 1;
    if (q->fate == NEVER || (q->ready_at && now_ns() < q->ready_at)) return 0;
    if (!q->state) q->state = arrive(q) > 0;
    if (!q->state) return 0;
    struct slot *s = &am->jobs[c->job].slots[q->seq % SLOTS];
    lock();
    int is_complete = s->arrived == c->size;
    unlock();
    if (!is_complete) return 0;
    char *from = area(c, q->seq), *into = q->spec.rbuf_desc.buffer.ptr;
    if (q->kind < 2 && (q->root < 0 || q->root == c->rank))
        reduce(into, from, c->room, c->size, q->spec.length, q->spec.dtype, q->spec.op);
    if (q->kind == 3) memcpy(into, from + (size_t)q->root * c->room, q->bytes);
    if (q->fate == WRONG && q->bytes) into[0] ^= 1;
    lock();
    leave_slot(&am->jobs[c->job], s, c->size);
    unlock();
    q->state = 2;
    return 1;
}

int sharp_coll_req_free(void *handle) {
    struct request **at = &requests, *q = handle;
    pthread_mutex_lock(&here);
    while (*at && *at != q) at = &(*at)->next;
    int is_there = *at != 0;
    if (is_there) *at = q->next;
    pthread_mutex_unlock(&here);
    if (!is_there) return SHARP_COLL_EINVAL;
    q->comm->outstanding--;
    free(q);
    return 0;
}

int sharp_coll_req_wait(void *handle) {
    while (!sharp_coll_req_test(handle)) sched_yield();
    return sharp_coll_req_free(handle);
}

#define BLOCKING(name, spec_type)                                                     \
    int sharp_coll_do_##name(struct sharp_coll_comm *comm, struct spec_type *spec) {  \
        void *handle;                                                                 \
        int code = sharp_coll_do_##name##_nb(comm, spec, &handle);                    \
        return code ? code : sharp_coll_req_wait(handle);                             \
    }
BLOCKING(allreduce, sharp_coll_reduce_spec)
BLOCKING(reduce, sharp_coll_reduce_spec)
BLOCKING(bcast, sharp_coll_bcast_spec)

int sharp_coll_do_barrier(struct sharp_coll_comm *comm) {
    void *handle;
    int code = sharp_coll_do_barrier_nb(comm, &handle);
    return code ? code : sharp_coll_req_wait(handle);
}

/* The adapter uses none of these. */
int sharp_coll_do_reduce_scatter(struct sharp_coll_comm *comm, struct sharp_coll_reduce_spec *spec) {
    return comm && spec ? SHARP_COLL_ENOT_SUPP : SHARP_COLL_EINVAL;
}
int sharp_coll_do_reduce_scatter_nb(struct sharp_coll_comm *comm, struct sharp_coll_reduce_spec *spec, void **handle) {
    return comm && spec && handle ? SHARP_COLL_ENOT_SUPP : SHARP_COLL_EINVAL;
}
int sharp_coll_do_allgather(struct sharp_coll_comm *comm, struct sharp_coll_gather_spec *spec) {
    return comm && spec ? SHARP_COLL_ENOT_SUPP : SHARP_COLL_EINVAL;
}
int sharp_coll_do_allgather_nb(struct sharp_coll_comm *comm, struct sharp_coll_gather_spec *spec, void **handle) {
    return comm && spec && handle ? SHARP_COLL_ENOT_SUPP : SHARP_COLL_EINVAL;
}

const char *sharp_coll_strerror(int error) {
    return error ? "an error of the double" : "success";
}

int sharp_coll_print_config(FILE *stream, enum config_print_flags flags, const char *name) {
    fprintf(stream, "# double, flags %d, of %s\nSHARP_COLL_ENABLE_SAT=1\n", (int)flags, name ? name : "");
    return 0;
}
