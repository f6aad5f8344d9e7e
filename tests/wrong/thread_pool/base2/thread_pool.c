/* thread_pool, with one mistake: see mistakes.yaml. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "tinyllm/pool.h"

enum { MAX_NEST = 64 };

/* Which pools are around the code that runs, by their serial numbers. */
typedef struct {
    int depth;
    uint64_t serial[MAX_NEST];
} nest;

static _Thread_local nest around;

struct tl_pool {
    uint64_t serial;
    int threads, born;
    pthread_t *tid;
    pthread_mutex_t mu;
    pthread_cond_t work;   /* a range to take, or the end */
    pthread_cond_t change; /* a range ended, or a loop did */
    /* the loop */
    int busy, stop;
    int64_t n, grain;
    int64_t next, total, left;
    tl_range_fn fn;
    void *ctx;
    nest outer;
};

static pthread_mutex_t serial_mu = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_serial;

static uint64_t new_serial(void)
{
    pthread_mutex_lock(&serial_mu);
    uint64_t s = ++last_serial;
    pthread_mutex_unlock(&serial_mu);
    return s;
}

/* Called and left with the mutex held; runs ranges until there is none to take. */
static void drain(tl_pool *p, int me)
{
    while (p->next < p->total) {
        int64_t lo = p->next++ * p->grain;
        int64_t hi = p->n;
        if (p->n - lo > p->grain)
            hi = lo + p->grain;
        tl_range_fn fn = p->fn;
        void *ctx = p->ctx;
        pthread_mutex_unlock(&p->mu);
        fn(ctx, lo, hi, me);
        pthread_mutex_lock(&p->mu);
        if (--p->left == 0)
            pthread_cond_broadcast(&p->change);
    }
}

static void *live(void *arg)
{
    tl_pool *p = arg;
    pthread_mutex_lock(&p->mu);
    int me = ++p->born;
    while (!p->stop) {
        if (p->next < p->total) {
            around = p->outer;
            drain(p, me);
            around.depth = 0;
        } else {
            pthread_cond_wait(&p->work, &p->mu);
        }
    }
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

static void bury(tl_pool *p, int count)
{
    pthread_mutex_lock(&p->mu);
    while (p->busy)
        pthread_cond_wait(&p->change, &p->mu);
    p->stop = 1;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->mu);
    while (count > 0)
        pthread_join(p->tid[--count], NULL);
    pthread_mutex_destroy(&p->mu);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->change);
    tl_free(p->tid);
    tl_free(p);
}

tl_status tl_pool_create(int n_threads, tl_pool **out)
{
    tl_status bad = TL_OK;
    tl_pool *p = NULL;
    if (out)
        *out = NULL;
    if (!out || n_threads < 0) {
        tl_set_last_error("tl_pool_create: bad argument");
        return TL_EINVAL;
    }
    if (n_threads == 0) {
        long cpus = sysconf(_SC_NPROCESSORS_ONLN);
        n_threads = cpus > 1 ? (int)cpus : 1;
    }
    p = tl_alloc(sizeof(tl_pool), 64);
    if (!p) {
        tl_set_last_error("tl_pool_create: out of memory");
        return TL_ENOMEM;
    }
    *p = (tl_pool){.serial = new_serial(), .threads = n_threads};
    if (n_threads > 1) {
        p->tid = tl_alloc(sizeof(pthread_t) * (size_t)(n_threads - 1), 64);
        if (!p->tid) {
            tl_free(p);
            tl_set_last_error("tl_pool_create: out of memory");
            return TL_ENOMEM;
        }
    }
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->change, NULL);
    int made = 0;
    while (made < n_threads - 1 && bad == TL_OK) {
        if (pthread_create(&p->tid[made], NULL, live, p) == 0)
            made++;
        else
            bad = TL_EIO;
    }
    if (bad) {
        bury(p, made);
        tl_set_last_error("tl_pool_create: pthread_create failed");
        return bad;
    }
    *out = p;
    return TL_OK;
}

int tl_pool_threads(const tl_pool *p)
{
    if (!p)
        return 1;
    return p->threads;
}

void tl_pool_destroy(tl_pool *p)
{
    if (p)
        bury(p, p->threads - 1);
}

static tl_status serial_loop(int64_t n, int64_t grain, tl_range_fn fn, void *ctx)
{
    int64_t lo = 0;
    while (n - lo > grain) {
        fn(ctx, lo, lo + grain, 0);
        lo += grain;
    }
    if (lo < n)
        fn(ctx, lo, n, 0);
    return TL_OK;
}

tl_status tl_parallel_for(tl_pool *p, int64_t n, int64_t grain, tl_range_fn fn, void *ctx)
{
    if (n < 0 || grain < 1 || !fn) {
        tl_set_last_error("tl_parallel_for: bad argument");
        return TL_EINVAL;
    }
    if (!p)
        return serial_loop(n, grain, fn, ctx);
    int nested = around.depth == MAX_NEST;
    for (int i = 0; i < around.depth; i++)
        nested |= around.serial[i] == p->serial;
    if (nested) {
        tl_set_last_error("tl_parallel_for: nested loop on one pool");
        return TL_EBUSY;
    }
    if (n == 0)
        return TL_OK;

    pthread_mutex_lock(&p->mu);
    while (p->busy)
        pthread_cond_wait(&p->change, &p->mu);
    p->busy = 1;
    around.serial[around.depth++] = p->serial;
    p->outer = around;
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    p->next = 0;
    p->total = p->left = (n - 1) / grain + 1;
    pthread_cond_broadcast(&p->work);
    drain(p, 0);
    while (p->left > 0)
        pthread_cond_wait(&p->change, &p->mu);
    around.depth--;
    p->busy = 0;
    pthread_cond_broadcast(&p->change);
    pthread_mutex_unlock(&p->mu);
    return TL_OK;
}
