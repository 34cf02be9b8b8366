/* All-reduces one after the other as a C program does them, on functions of libsharp_coll that are handed in:
 * post, test until it is complete, free. Returns 0, or the first code that is none; ns has each one's time. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <time.h>

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int sharp_loop(int (*post)(void *, void *, void **), int (*test)(void *), int (*end)(void *), void *comm,
               void *spec, int64_t times, int64_t *ns) {
    for (int64_t i = 0; i < times; i++) {
        void *handle = 0;
        int64_t began = now_ns();
        int code = post(comm, spec, &handle);
        if (code) return code;
        for (int64_t spins = 0; !test(handle); spins++)
            if (spins > 1000) sched_yield(); /* the other rank may want this processor */
        code = end(handle);
        if (code) return code;
        ns[i] = now_ns() - began;
    }
    return 0;
}
