/* tinyllm/pool.h -- a pool of threads and one parallel loop.  Unit thread_pool, spec/thread_pool.md. */
#ifndef TINYLLM_POOL_H
#define TINYLLM_POOL_H

#include "tinyllm/abi.h"

typedef struct tl_pool tl_pool;

/* Handles the indices lo <= i < hi as worker 0 .. tl_pool_threads - 1. */
typedef void (*tl_range_fn)(void *ctx, int64_t lo, int64_t hi, int worker);

/* n_threads workers, the caller among them (0: one a CPU), in *out; TL_EINVAL, TL_ENOMEM or TL_EIO with
 * *out NULL. */
tl_status tl_pool_create(int n_threads, tl_pool **out);

/* fn once on each range [k*grain, min((k+1)*grain, n)), returns when all are done; p NULL: in order on this
 * thread; TL_EINVAL, TL_EBUSY. */
tl_status tl_parallel_for(tl_pool *p, int64_t n, int64_t grain, tl_range_fn fn, void *ctx);

/* Number of workers, the caller included; 1 for NULL. */
int tl_pool_threads(const tl_pool *p);

/* Waits for a running call, joins the threads, frees the pool; NULL is ignored. */
void tl_pool_destroy(tl_pool *p);

#endif
