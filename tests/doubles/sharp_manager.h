/* What the contexts of all processes share: the Aggregation Manager of the double, and what goes wrong on
 * demand. Part of tests/doubles/sharp_coll.c. */
enum { RANKS = 16, JOBS = 32, IDS = 16, SLOTS = 4, FAULTS = 32, FUNCTIONS = 32, PLACES = 32, NAME = 48 };
enum { NEVER = 1, WRONG = 2, LATE = 1000 };
#define READY 0x53484152u

struct fault { char function[NAME]; int rank, nth, code; };
struct counter { char function[NAME]; int calls[RANKS]; };
struct place { char device[NAME]; int n; int ids[IDS]; };

struct slot {
    uint64_t seq; /* number of the operation plus 1; 0: free */
    int joined, arrived, left, code, dtype, op, kind, locks;
    uint64_t length;
};

struct job {
    uint64_t id;
    int used, size, members, n, ids[IDS], locks;
    int pids[RANKS];
    uint64_t dead_since;
    struct slot slots[SLOTS];
};

struct settings {
    int64_t preset, capacity, trees_max, jobs_max, lock_mode, lock_on_comm_init, foreign_lock;
    int64_t quota, cleanup_ms, delay_permille, osts, hang_ms, lost;
};

struct am {
    volatile uint32_t ready;
    pthread_mutex_t lock;
    struct settings set;
    struct fault faults[FAULTS];
    struct counter counters[FUNCTIONS];
    struct place places[PLACES];
    struct job jobs[JOBS];
};

struct region { struct region *next; struct sharp_coll_context *owner; char *at; size_t bytes; };

struct sharp_coll_context {
    struct sharp_coll_context *next;
    int rank, size, job, timeout;
    struct sharp_coll_out_of_band_colls oob;
    void *oob_ctx;
    struct sharp_coll_comm *comm;
    char *data;
    size_t room;
};

struct sharp_coll_comm { struct sharp_coll_context *context; uint64_t next_seq; int outstanding; };

struct request {
    struct request *next;
    struct sharp_coll_comm *comm;
    uint64_t seq, bytes, ready_at;
    int state, fate, kind, root; /* state 0: waits for a slot, 1: has arrived, 2: complete */
    struct sharp_coll_reduce_spec spec;
};

const struct sharp_coll_config sharp_coll_default_config = { "", 9999, -1, 0, { 0, 0, 0 } };

static pthread_mutex_t here = PTHREAD_MUTEX_INITIALIZER;
static struct am *am;
static char am_path[256];
static struct sharp_coll_context *contexts;
static struct region *regions;
static struct request *requests;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void rest_ms(int64_t ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    while (ms > 0 && nanosleep(&t, &t) && errno == EINTR) { }
}

static void lock(void) {
    if (pthread_mutex_lock(&am->lock) == EOWNERDEAD) pthread_mutex_consistent(&am->lock);
}

static void unlock(void) { pthread_mutex_unlock(&am->lock); }

static void begin(struct am *fresh) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&fresh->lock, &a);
    fresh->set = (struct settings){ .preset = 2, .capacity = 1, .trees_max = JOBS, .jobs_max = JOBS,
                                    .quota = 4096, .cleanup_ms = 1000, .osts = 256 };
    fresh->ready = READY;
}

/* Maps the shared file, anew where the environment names another. Returns whether there is one. */
static int map_am(void) {
    const char *path = getenv("SHARP_DOUBLE_AM");
    if (!path) return 0;
    pthread_mutex_lock(&here);
    if (!am || strcmp(path, am_path)) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0) {
            flock(fd, LOCK_EX);
            struct am *found = MAP_FAILED;
            if (!ftruncate(fd, sizeof *am)) found = mmap(0, sizeof *am, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (found != MAP_FAILED) {
                if (found->ready != READY) begin(found);
                if (am) munmap(am, sizeof *am);
                am = found;
                strncpy(am_path, path, sizeof am_path - 1);
            }
            flock(fd, LOCK_UN);
            close(fd);
        }
    }
    pthread_mutex_unlock(&here);
    return am != 0;
}

/* Counts a call of a rank, and returns what is to go wrong in it, or 0. */
static int fault(const char *function, int rank) {
    int code = 0, call = 0, i;
    lock();
    for (i = 0; i < FUNCTIONS; i++) {
        struct counter *c = &am->counters[i];
        if (!c->function[0]) strncpy(c->function, function, NAME - 1);
        if (strcmp(c->function, function)) continue;
        if (rank >= 0 && rank < RANKS) call = ++c->calls[rank];
        break;
    }
    for (i = 0; i < FAULTS; i++) {
        struct fault *f = &am->faults[i];
        if (!strcmp(f->function, function) && (f->rank < 0 || f->rank == rank) && (!f->nth || f->nth == call)) {
            code = f->code;
            break;
        }
    }
    unlock();
    if (code == LATE - 1) { rest_ms(am->set.hang_ms); code = 0; } /* a call that hangs */
    return code;
}

/* ---- what tests set and ask ---- */

static int64_t *setting(const char *key) {
    static const char *names[] = { "preset", "capacity", "trees_max", "jobs_max", "lock_mode",
                                   "lock_on_comm_init", "foreign_lock", "quota", "cleanup_ms",
                                   "delay_permille", "osts", "hang_ms", "lost" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], key)) return (int64_t *)&am->set + i;
    return 0;
}

int sharp_double_set(const char *key, int64_t value) {
    int64_t *where = map_am() ? setting(key) : 0;
    if (where) *where = value;
    return where ? 0 : -1;
}

/* Contexts that were abandoned before are not counted any more. */
void sharp_double_begin(void) {
    pthread_mutex_lock(&here);
    contexts = 0, regions = 0, requests = 0;
    pthread_mutex_unlock(&here);
}

/* nth 0: each call; rank -1: each rank. Without a function: nothing goes wrong any more. */
int sharp_double_inject(const char *function, int rank, int nth, int code) {
    int i;
    if (!map_am()) return -1;
    lock();
    for (i = 0; i < FAULTS && function[0] && am->faults[i].function[0]; i++) { }
    if (!function[0]) {
        memset(am->faults, 0, sizeof am->faults);
        memset(am->counters, 0, sizeof am->counters);
    } else if (i < FAULTS) {
        strncpy(am->faults[i].function, function, NAME - 1);
        am->faults[i].rank = rank, am->faults[i].nth = nth, am->faults[i].code = code;
    }
    unlock();
    return i < FAULTS ? 0 : -1;
}

/* Switches or ports of a job whose device has that name. */
int sharp_double_place(const char *device, int n, const int *ids) {
    int i;
    if (!map_am() || n > IDS) return -1;
    lock();
    for (i = 0; i < PLACES && am->places[i].device[0] && strcmp(am->places[i].device, device); i++) { }
    if (i < PLACES) {
        strncpy(am->places[i].device, device, NAME - 1);
        am->places[i].n = n;
        memcpy(am->places[i].ids, ids, (size_t)n * sizeof *ids);
    }
    unlock();
    return i < PLACES ? 0 : -1;
}

/* contexts, regions, requests: of this process; jobs: of all; else the calls of a function by all ranks. */
int sharp_double_count(const char *what) {
    int n = 0, i, r;
    if (!map_am()) return -1;
    pthread_mutex_lock(&here);
    if (!strcmp(what, "contexts")) for (struct sharp_coll_context *c = contexts; c; c = c->next) n++;
    if (!strcmp(what, "regions")) for (struct region *g = regions; g; g = g->next) n++;
    if (!strcmp(what, "requests")) for (struct request *q = requests; q; q = q->next) n++;
    pthread_mutex_unlock(&here);
    lock();
    for (i = 0; i < JOBS && !strcmp(what, "jobs"); i++) n += am->jobs[i].used;
    for (i = 0; i < FUNCTIONS; i++)
        for (r = 0; r < RANKS && !strcmp(am->counters[i].function, what); r++) n += am->counters[i].calls[r];
    unlock();
    return n;
}

/* ---- the Aggregation Manager; its lock is held ---- */

static int share(const struct job *a, const struct job *b) {
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n; k++)
            if (a->ids[i] == b->ids[k]) return 1;
    return 0;
}

static void data_name(const struct job *job, char *name, size_t bytes) {
    snprintf(name, bytes, "%s.%llx", am_path, (unsigned long long)job->id);
}

static void free_job(struct job *job) {
    char name[300];
    data_name(job, name, sizeof name);
    unlink(name);
    memset(job, 0, sizeof *job);
}

/* A job whose process has died is found, and freed an interval later. */
static void clean_up(void) {
    for (int j = 0; j < JOBS; j++) {
        struct job *job = &am->jobs[j];
        int dead = 0;
        for (int r = 0; job->used && r < job->size; r++)
            dead |= job->pids[r] && kill(job->pids[r], 0) && errno == ESRCH;
        if (!dead) continue;
        if (!job->dead_since) job->dead_since = now_ns();
        if (now_ns() - job->dead_since >= (uint64_t)am->set.cleanup_ms * 1000000u) free_job(job);
    }
}

/* Whether a switch or port of the job is that which is set as lost. */
static int is_lost(const struct job *job) {
    for (int i = 0; i < job->n; i++) if (am->set.lost && am->set.lost == job->ids[i]) return 1;
    return 0;
}

static int create_job(uint64_t id, int size, const char *device, int *where) {
    struct job wish = { .id = id, .used = 1, .size = size };
    int free_at = -1, used = 0, j, i;
    clean_up();
    for (i = 0; i < PLACES; i++)
        if (device && !strcmp(am->places[i].device, device)) {
            wish.n = am->places[i].n;
            memcpy(wish.ids, am->places[i].ids, sizeof wish.ids);
        }
    for (j = JOBS - 1; j >= 0; j--) {
        if (!am->jobs[j].used) { free_at = j; continue; }
        used++;
        if (am->jobs[j].id == id) return SHARP_COLL_EJOB_CREATE;
    }
    if (used >= am->set.jobs_max || free_at < 0) return SHARP_COLL_EJOB_CREATE;
    if (used >= am->set.trees_max || is_lost(&wish)) return SHARP_COLL_ENOTREE;
    for (i = 0; i < wish.n && am->set.lock_mode == 0; i++) {
        int users = 0;
        for (j = 0; j < JOBS; j++)
            for (int k = 0; am->jobs[j].used && k < am->jobs[j].n; k++) users += am->jobs[j].ids[k] == wish.ids[i];
        if (users >= am->set.capacity) return SHARP_COLL_ENO_RESOURCE;
    }
    am->jobs[*where = free_at] = wish;
    return 0;
}

/* The lock of a job's streaming tree; -18 where somebody else has that of a switch or port. */
static int lock_tree(struct job *job) {
    for (int i = 0; i < job->n; i++)
        if (am->set.foreign_lock && am->set.foreign_lock == job->ids[i]) return SHARP_COLL_ELOCK_FAILED;
    for (int j = 0; j < JOBS; j++) {
        struct job *other = &am->jobs[j];
        if (other != job && other->used && other->locks && share(job, other)) return SHARP_COLL_ELOCK_FAILED;
    }
    job->locks++;
    return 0;
}

static void leave_job(int at, int rank) {
    struct job *job = &am->jobs[at];
    job->pids[rank] = 0;
    if (--job->members <= 0) free_job(job);
}
