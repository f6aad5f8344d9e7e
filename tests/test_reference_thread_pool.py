"""The reference of `thread_pool`: refused and counted threads, wake-ups, sleep, races, the last range."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader import library, native
from tests.c_programs import ROOT, SRC, named, needs_compiler, run, ways

pytestmark = needs_compiler
GIVEN = (SRC / "abi.c", SRC / "error_slot.c")
COUNTED = ("-Dpthread_create=counted_create", "-Dpthread_join=counted_join")

# Built with COUNTED: pthread_create of the sources is counted_create here, which may refuse.
THREADS = r"""
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tinyllm/pool.h"
#undef pthread_create
#undef pthread_join

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg);
int pthread_join(pthread_t thread, void **result);

static int allowed, started, joined;
static long live;

int counted_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
    if (started == allowed)
        return 11;
    int failed = pthread_create(thread, attr, start, arg);
    started += failed == 0;
    return failed;
}

int counted_join(pthread_t thread, void **result)
{
    joined++;
    return pthread_join(thread, result);
}

static void *counted(void *user, size_t n, size_t align)
{
    (void)user, (void)align;
    live++;
    return malloc(n);
}

static void released(void *user, void *p)
{
    (void)user;
    live--;
    free(p);
}

static void add(void *ctx, int64_t lo, int64_t hi, int worker)
{
    (void)worker;
    atomic_fetch_add((_Atomic int64_t *)ctx, hi - lo);
}

int main(void)
{
    tl_allocator hook = {counted, released, NULL};
    tl_set_allocator(&hook);
    for (int n = 1; n <= 9; n++)
        for (allowed = 0; allowed <= 9; allowed++) {
            static char nothing;
            tl_pool *p = (tl_pool *)(void *)&nothing;
            _Atomic int64_t sum = 0;
            started = joined = 0;
            tl_set_last_error("");
            tl_status status = tl_pool_create(n, &p);
            int refused = allowed < n - 1;
            if (status != (refused ? TL_EIO : TL_OK) || started != (refused ? allowed : n - 1))
                return 1;
            if (status != TL_OK && (p || joined != started || !strstr(tl_last_error(), "tl_pool_create")))
                return 2;
            if (status == TL_OK && (tl_parallel_for(p, 100, 3, add, &sum) != TL_OK || sum != 100 || joined))
                return 3;
            tl_pool_destroy(p);
            if (joined != started || live != 0)
                return 4;
        }
    puts("counted");
    return 0;
}
"""

# Loops whose ranges need every thread, then none: a wake-up that is lost stops the program.
MEETINGS = r"""
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include "tinyllm/pool.h"

enum { MOST = 5 };
static _Atomic int here;
static int workers;

static void meet(void *ctx, int64_t lo, int64_t hi, int worker)
{
    int *seen = ctx;
    seen[worker] += (int)(hi - lo);
    atomic_fetch_add(&here, 1);
    while (atomic_load(&here) < workers)
        sched_yield();
}

static void nothing(void *ctx, int64_t lo, int64_t hi, int worker)
{
    (void)ctx, (void)lo, (void)hi, (void)worker;
}

int main(void)
{
    for (workers = 1; workers <= MOST; workers++) {
        tl_pool *p;
        if (tl_pool_create(workers, &p) != TL_OK)
            return 1;
        for (int i = 0; i < LOOPS; i++) {
            int seen[MOST] = {0};
            atomic_store(&here, 0);
            if (tl_parallel_for(p, workers, 1, meet, seen) != TL_OK)
                return 2;
            for (int w = 0; w < workers; w++)
                if (seen[w] != 1)
                    return 3;
            for (int j = i % 3; j > 0; j--)
                if (tl_parallel_for(p, j, 1, nothing, NULL) != TL_OK)
                    return 4;
        }
        tl_pool_destroy(p);
    }
    puts("met");
    return 0;
}
"""

# Plain memory everywhere: whatever a pool does not order is a race for the thread sanitizer.
ORDER = r"""
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "tinyllm/pool.h"

enum { N = 60, LOOPS = 30 };
static tl_pool *outer, *inner;
static long total; /* changed by one loop of inner after another, and by nothing else */

typedef struct {
    int in[N], out[N];
} table;

static void tally(void *ctx, int64_t lo, int64_t hi, int worker)
{
    (void)worker;
    if (lo == 0)
        total += *(int *)ctx;
    if (tl_parallel_for(outer, hi, 1, tally, ctx) != TL_EBUSY || !strstr(tl_last_error(), "tl_parallel_for"))
        total += 1000000;
}

static void twice(void *ctx, int64_t lo, int64_t hi, int worker)
{
    (void)worker;
    table *t = ctx;
    for (int64_t i = lo; i < hi; i++)
        t->out[i] = 2 * t->in[i];
    int one = 1;
    if (lo % 20 == 0 && tl_parallel_for(inner, 4, 1, tally, &one) != TL_OK)
        t->out[lo] = -1;
    if (tl_parallel_for(outer, 4, 1, twice, ctx) != TL_EBUSY)
        t->out[lo] = -1;
}

static void *caller(void *arg)
{
    table *t = arg;
    for (int loop = 0; loop < LOOPS; loop++) {
        for (int i = 0; i < N; i++)
            t->in[i] = loop + i;
        if (tl_parallel_for(outer, N, 1 + loop % 7, twice, t) != TL_OK)
            return arg;
        for (int i = 0; i < N; i++)
            if (t->out[i] != 2 * (loop + i))
                return arg;
    }
    return NULL;
}

int main(void)
{
    static table tables[3];
    for (int round = 0; round < 3; round++) {
        pthread_t threads[3];
        if (tl_pool_create(3, &outer) != TL_OK || tl_pool_create(2, &inner) != TL_OK)
            return 1;
        for (int i = 0; i < 3; i++)
            if (pthread_create(&threads[i], NULL, caller, &tables[i]) != 0)
                return 2;
        for (int i = 0; i < 3; i++) {
            void *wrong;
            pthread_join(threads[i], &wrong);
            if (wrong)
                return 3;
        }
        tl_pool_destroy(outer);
        tl_pool_destroy(inner);
    }
    printf("%ld", total);
    return 0;
}
"""

# Loops of inner: one for each range of outer that starts at a multiple of 20; three callers, three rounds.
INNER = str(9 * sum(lo % 20 == 0 for loop in range(30) for lo in range(0, 60, 1 + loop % 7)))

SLEEP = r"""
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <time.h>
#include "tinyllm/pool.h"

static void nothing(void *ctx, int64_t lo, int64_t hi, int worker)
{
    (void)ctx, (void)lo, (void)hi, (void)worker;
}

int main(void)
{
    tl_pool *p;
    if (tl_pool_create(4, &p) != TL_OK || tl_parallel_for(p, 100, 1, nothing, NULL) != TL_OK)
        return 1;
    struct timespec pause = {.tv_nsec = 300000000};
    nanosleep(&pause, NULL);
    clock_t used = clock(); /* of all threads */
    tl_pool_destroy(p);
    puts(used < CLOCKS_PER_SEC / 10 ? "asleep" : "awake");
    return 0;
}
"""

# The last range of the most that there can be, and three threads that come after it.
FULL = r"""
#include <stdio.h>
#include "thread_pool.c"

static void record(void *ctx, int64_t lo, int64_t hi, int worker)
{
    (void)ctx;
    printf("%d %d %d;", lo == INT64_MAX - 1, hi == INT64_MAX, worker);
}

int main(void)
{
    tl_pool p = {.n_workers = 4, .next = INT64_MAX - 1};
    job j = {.n = INT64_MAX, .grain = 1, .n_ranges = INT64_MAX, .fn = record};
    for (int worker = 0; worker < 4; worker++)
        take_ranges(&p, &j, worker);
    return 0;
}
"""


@pytest.fixture(params=ways("thread_pool", ("thread_pool.c",)), ids=named)
def files(request: pytest.FixtureRequest) -> tuple[Path, ...]:
    return tuple(request.param)


def test_a_refused_thread_gives_back_the_others_and_all_memory(
    files: tuple[Path, ...], tmp_path: Path
) -> None:
    assert run(tmp_path, THREADS, *files, *GIVEN, more=COUNTED) == "counted\n"


def test_no_wake_up_is_lost(files: tuple[Path, ...], tmp_path: Path) -> None:
    assert run(tmp_path, MEETINGS, *files, *GIVEN, more=("-DLOOPS=1000",), sanitize=False) == "met\n"


def test_threads_sleep_between_loops(files: tuple[Path, ...], tmp_path: Path) -> None:
    assert run(tmp_path, SLEEP, *files, *GIVEN, sanitize=False) == "asleep\n"


@pytest.mark.parametrize("flavor", ["asan", "tsan"])
def test_a_loop_orders_plain_memory_before_and_after(
    files: tuple[Path, ...], flavor: str, tmp_path: Path
) -> None:
    if not library.available(flavor, ROOT):
        pytest.skip("the sanitizer does not start here")
    assert run(tmp_path, ORDER, *files, *GIVEN, more=native.FLAVORS[flavor], sanitize=False) == INNER


def test_the_counter_of_ranges_goes_past_the_largest_number(tmp_path: Path) -> None:
    assert run(tmp_path, FULL, *GIVEN) == "1 1 0;"
