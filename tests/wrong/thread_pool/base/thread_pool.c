/* thread_pool, with one mistake: see mistakes.yaml. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "tinyllm/pool.h"

/* The pools whose ranges this thread is inside of, innermost first; lives on the stack of the loop. */
typedef struct frame {
    const tl_pool *pool;
    const struct frame *outer;
} frame;

typedef struct {
    tl_range_fn fn;
    void *ctx;
    int64_t n, grain, ranges;
    const frame *frames;
} job;

typedef struct {
    tl_pool *pool;
    int number;
    pthread_t thread;
} worker;

struct tl_pool {
    int n;
    worker *workers; /* n - 1 */
    pthread_mutex_t call;
    pthread_mutex_t lock; /* of everything below but next */
    pthread_cond_t wake, quiet;
    job current;
    int open, quit, inside;
    uint64_t round;
    _Atomic uint64_t next;
};

static _Thread_local const frame *frames;

static tl_status fail(tl_status s, const char *text)
{
    tl_set_last_error(text);
    return s;
}

static void one_range(const job *j, int64_t k, int number)
{
    int64_t lo = k * j->grain;
    int64_t hi = j->n - lo < j->grain ? j->n : lo + j->grain;
    j->fn(j->ctx, lo, hi, number);
}

static void take_ranges(tl_pool *p, const job *j, int number)
{
    for (;;) {
        uint64_t k = atomic_fetch_add(&p->next, 1);
        if (k >= (uint64_t)j->ranges)
            return;
        one_range(j, (int64_t)k, number);
    }
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    tl_pool *p = w->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->quit && !(p->open && p->round != seen))
            pthread_cond_wait(&p->wake, &p->lock);
        if (p->quit)
            break;
        seen = p->round;
        job j = p->current;
        p->inside++;
        pthread_mutex_unlock(&p->lock);
        frames = j.frames;
        take_ranges(p, &j, w->number);
        frames = NULL;
        pthread_mutex_lock(&p->lock);
        if (--p->inside == 0)
            pthread_cond_signal(&p->quiet);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void end_threads(tl_pool *p, int started)
{
    pthread_mutex_lock(&p->lock);
    p->quit = 1;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < started; i++)
        pthread_join(p->workers[i].thread, NULL);
}

static void give_back(tl_pool *p)
{
    pthread_cond_destroy(&p->quiet);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->call);
    tl_free(p->workers);
    tl_free(p);
}

tl_status tl_pool_create(int n_threads, tl_pool **out)
{
    if (out == NULL)
        return fail(TL_EINVAL, "tl_pool_create: out is NULL");
    *out = NULL;
    if (n_threads < 0)
        return fail(TL_EINVAL, "tl_pool_create: negative number of threads");
    if (n_threads == 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        n_threads = online < 1 ? 1 : (int)online;
    }
    tl_pool *p = tl_alloc(sizeof *p, _Alignof(tl_pool));
    if (p == NULL)
        return fail(TL_ENOMEM, "tl_pool_create: no memory");
    memset(p, 0, sizeof *p);
    p->n = n_threads;
    atomic_init(&p->next, 0);
    if (n_threads > 1) {
        p->workers = tl_alloc((size_t)(n_threads - 1) * sizeof *p->workers, _Alignof(worker));
        if (p->workers == NULL) {
            tl_free(p);
            return fail(TL_ENOMEM, "tl_pool_create: no memory");
        }
    }
    pthread_mutex_init(&p->call, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->quiet, NULL);
    for (int i = 0; i < n_threads - 1; i++) {
        p->workers[i].pool = p;
        p->workers[i].number = i + 1;
        if (pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]) != 0) {
            end_threads(p, i);
            give_back(p);
            return fail(TL_EIO, "tl_pool_create: the system refused a thread");
        }
    }
    *out = p;
    return TL_OK;
}

int tl_pool_threads(const tl_pool *p)
{
    return p ? p->n : 1;
}

void tl_pool_destroy(tl_pool *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->call);
    end_threads(p, p->n - 1);
    pthread_mutex_unlock(&p->call);
    give_back(p);
}

static int inside_of(const tl_pool *p)
{
    for (const frame *f = frames; f; f = f->outer)
        if (f->pool == p)
            return 1;
    return 0;
}

tl_status tl_parallel_for(tl_pool *p, int64_t n, int64_t grain, tl_range_fn fn, void *ctx)
{
    if (n < 0)
        return fail(TL_EINVAL, "tl_parallel_for: n is negative");
    if (grain < 1)
        return fail(TL_EINVAL, "tl_parallel_for: grain is below 1");
    if (fn == NULL)
        return fail(TL_EINVAL, "tl_parallel_for: fn is NULL");
    if (p && inside_of(p))
        return fail(TL_EBUSY, "tl_parallel_for: the pool is in a loop around this one");
    if (n == 0)
        return TL_OK;
    job j = {fn, ctx, n, grain, (n - 1) / grain + 1, NULL};
    if (p == NULL) {
        for (int64_t k = 0; k < j.ranges; k++)
            one_range(&j, k, 0);
        return TL_OK;
    }
    frame here = {p, frames};
    j.frames = &here;

    pthread_mutex_lock(&p->call);
    pthread_mutex_lock(&p->lock);
    p->current = j;
    atomic_store(&p->next, 0);
    p->round++;
    p->open = 1;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);

    frames = &here;
    take_ranges(p, &j, 0);
    frames = here.outer;

    pthread_mutex_lock(&p->lock);
    p->open = 0;
    while (p->inside > 0)
        pthread_cond_wait(&p->quiet, &p->lock);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&p->call);
    return TL_OK;
}
