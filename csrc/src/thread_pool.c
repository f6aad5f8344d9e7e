/* SPDX-License-Identifier: Apache-2.0
 * Threads that sleep until a job is open, and take its ranges from one atomic counter.  Spec: spec/thread_pool.md.
 *
 * A job is open from its start until the caller finds the counter run out.  A thread that wakes while the job is open
 * goes inside, takes ranges until there are none, and leaves; one that wakes later finds it closed and sleeps again.
 * The caller closes the job and waits until nobody is inside: only then may the counter be set back for the next one.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "tinyllm/pool.h"

/* The loops that a thread is inside of, innermost first; the links lie on the stacks of their callers. */
typedef struct nest {
    const tl_pool *pool;
    const struct nest *outer;
} nest;

typedef struct {
    int64_t n, grain, n_ranges;
    tl_range_fn fn;
    void *ctx;
    const nest *around; /* the caller's link for this loop */
} job;

typedef struct {
    tl_pool *pool;
    int worker;
    pthread_t thread;
} member;

struct tl_pool {
    int n_workers; /* the caller of a loop among them */
    int n_started; /* threads */
    member *members;

    pthread_mutex_t call; /* held for the length of a loop (R17) */
    pthread_mutex_t lock; /* guards what follows, but for next */
    pthread_cond_t wake;  /* a job was opened, or stop was set */
    pthread_cond_t idle;  /* nobody is inside any more */
    bool open, stop;
    int inside;    /* threads that work on the job; the caller is not counted */
    uint64_t serial; /* number of the job, so that no thread goes inside twice */
    job job;
    _Atomic uint64_t next; /* the first range that nobody has taken */
};

static _Thread_local const nest *innermost;

static tl_status fail(tl_status status, const char *text)
{
    tl_set_last_error(text);
    return status;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- ranges ---- */

static void run_range(const job *j, int64_t k, int worker)
{
    int64_t lo = k * j->grain;
    int64_t hi = lo + min_i64(j->grain, j->n - lo); /* R10: lo + grain may overflow */
    j->fn(j->ctx, lo, hi, worker);
}

static void take_ranges(tl_pool *p, const job *j, int worker)
{
    const nest *before = innermost;
    innermost = j->around; /* R18: in every thread, with the loops around the caller */
    for (;;) {
        uint64_t k = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed); /* R9 */
        if (k >= (uint64_t)j->n_ranges) /* each thread goes once past the last, which may be INT64_MAX */
            break;
        run_range(j, (int64_t)k, worker);
    }
    innermost = before; /* R20 */
}

/* ---- threads ---- */

/* Waits for a job that this thread has not seen; false when the pool ends.  The lock is held. */
static bool wait_for_job(tl_pool *p, uint64_t seen)
{
    while (!p->stop && !(p->open && p->serial != seen))
        pthread_cond_wait(&p->wake, &p->lock);
    return !p->stop;
}

static void *worker_main(void *arg)
{
    const member *me = arg;
    tl_pool *p = me->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&p->lock);
    while (wait_for_job(p, seen)) {
        seen = p->serial;
        p->inside++;
        job j = p->job;
        pthread_mutex_unlock(&p->lock);
        take_ranges(p, &j, me->worker);
        pthread_mutex_lock(&p->lock);
        p->inside--;
        if (p->inside == 0 && !p->open)
            pthread_cond_signal(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void open_job(tl_pool *p, const job *j)
{
    pthread_mutex_lock(&p->lock);
    p->job = *j;
    p->serial++;
    p->open = true;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed); /* R16: the lock makes it visible */
    pthread_mutex_unlock(&p->lock);
    int64_t helpers = min_i64(j->n_ranges - 1, p->n_started); /* more would find nothing to do */
    for (int64_t i = 0; i < helpers; i++)
        pthread_cond_signal(&p->wake); /* R13 */
}

static void close_job(tl_pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->open = false;
    while (p->inside > 0) /* R12: the last ranges may still run */
        pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* ---- the loop ---- */

static bool is_inside(const tl_pool *p)
{
    for (const nest *at = innermost; at; at = at->outer)
        if (at->pool == p)
            return true;
    return false;
}

tl_status tl_parallel_for(tl_pool *p, int64_t n, int64_t grain, tl_range_fn fn, void *ctx)
{
    if (n < 0) /* R21 */
        return fail(TL_EINVAL, "tl_parallel_for: n is negative");
    if (grain < 1) /* R21 */
        return fail(TL_EINVAL, "tl_parallel_for: grain is below 1");
    if (!fn) /* R21 */
        return fail(TL_EINVAL, "tl_parallel_for: fn is NULL");
    if (n == 0) /* R14 */
        return TL_OK;

    job j = {.n = n, .grain = grain, .n_ranges = (n - 1) / grain + 1, .fn = fn, .ctx = ctx}; /* R10 */
    if (!p) { /* R15, R19 */
        for (int64_t k = 0; k < j.n_ranges; k++)
            run_range(&j, k, 0);
        return TL_OK;
    }
    if (is_inside(p)) /* R18 */
        return fail(TL_EBUSY, "tl_parallel_for: called from inside a range of the same pool");

    nest here = {.pool = p, .outer = innermost};
    j.around = &here;
    pthread_mutex_lock(&p->call); /* R17 */
    open_job(p, &j);
    take_ranges(p, &j, 0); /* R11: the caller is worker 0 */
    close_job(p);
    pthread_mutex_unlock(&p->call);
    return TL_OK;
}

int tl_pool_threads(const tl_pool *p)
{
    return p ? p->n_workers : 1; /* R3 */
}

/* ---- making and ending ---- */

static int processors(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (int)n; /* R2 */
}

static void stop_threads(tl_pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->members[i].thread, NULL);
}

static void free_pool(tl_pool *p)
{
    pthread_cond_destroy(&p->idle);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->call);
    tl_free(p->members);
    tl_free(p);
}

/* One short of n_workers, the caller being one of them (R1); false when the system refuses a thread. */
static bool start_threads(tl_pool *p)
{
    while (p->n_started < p->n_workers - 1) {
        member *m = &p->members[p->n_started];
        m->pool = p;
        m->worker = p->n_started + 1;
        if (pthread_create(&m->thread, NULL, worker_main, m) != 0)
            return false;
        p->n_started++;
    }
    return true;
}

/* A pool without threads yet, or NULL; R8: the only place that allocates. */
static tl_pool *new_pool(int n_workers)
{
    tl_pool *p = tl_alloc(sizeof *p, _Alignof(tl_pool));
    if (!p)
        return NULL;
    *p = (tl_pool){.n_workers = n_workers};
    p->members = tl_alloc((size_t)n_workers * sizeof *p->members, _Alignof(member));
    if (!p->members) {
        tl_free(p); /* R5 */
        return NULL;
    }
    pthread_mutex_init(&p->call, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    return p;
}

tl_status tl_pool_create(int n_threads, tl_pool **out)
{
    if (!out) /* R4 */
        return fail(TL_EINVAL, "tl_pool_create: out is NULL");
    *out = NULL; /* R6 */
    if (n_threads < 0) /* R4 */
        return fail(TL_EINVAL, "tl_pool_create: n_threads is negative");

    tl_pool *p = new_pool(n_threads == 0 ? processors() : n_threads); /* R2 */
    if (!p) /* R5 */
        return fail(TL_ENOMEM, "tl_pool_create: no memory");
    if (!start_threads(p)) { /* R5 */
        stop_threads(p);
        free_pool(p);
        return fail(TL_EIO, "tl_pool_create: the system refuses a thread");
    }
    *out = p;
    return TL_OK;
}

void tl_pool_destroy(tl_pool *p)
{
    if (!p) /* R7 */
        return;
    pthread_mutex_lock(&p->call); /* R7: after the loop that is running */
    stop_threads(p);
    pthread_mutex_unlock(&p->call);
    free_pool(p);
}
