/* tl_abi: status codes and the allocator hook. */
#define _POSIX_C_SOURCE 200112L
#include <stdbool.h>
#include <stdlib.h>

#include "tinyllm/abi.h"

/* ---- default memory ---- */

static void *os_get(void *unused, size_t bytes, size_t alignment)
{
    void *got = NULL;
    (void)unused;
    if (alignment < 16)
        alignment = 16;
    if (bytes + alignment < bytes)
        return NULL;
    if (posix_memalign(&got, alignment, bytes) != 0)
        return NULL;
    return got;
}

static void os_put(void *unused, void *what)
{
    (void)unused;
    free(what);
}

static void *(*get_fn)(void *, size_t, size_t) = os_get;
static void (*put_fn)(void *, void *) = os_put;
static void *host;

static bool power_of_two(size_t x)
{
    while (x > 1 && x % 2 == 0)
        x /= 2;
    return x == 1;
}

/* ---- the interface ---- */

uint32_t tl_abi_version(void) { return TL_ABI_VERSION; }

#define NAME(code) case code: return #code
const char *tl_status_str(tl_status s)
{
    switch (s) {
        NAME(TL_OK);
        NAME(TL_EINVAL);
        NAME(TL_ENOMEM);
        NAME(TL_ESHAPE);
        NAME(TL_EDTYPE);
        NAME(TL_EFULL);
        NAME(TL_ENOTFOUND);
        NAME(TL_EFORMAT);
        NAME(TL_EBUSY);
        NAME(TL_EUNSUPPORTED);
        NAME(TL_EIO);
    default:
        return "TL_UNKNOWN";
    }
}
#undef NAME

tl_status tl_set_allocator(const tl_allocator *a)
{
    if (!a) {
        get_fn = os_get;
        put_fn = os_put;
        host = NULL;
    } else if (a->alloc && a->free) {
        get_fn = a->alloc;
        put_fn = a->free;
        host = a->user;
    } else {
        tl_set_last_error("tl_set_allocator: half a hook");
        return TL_EINVAL;
    }
    return TL_OK;
}

void *tl_alloc(size_t n, size_t align)
{
    void *p;

    if (n == 0) {
        tl_set_last_error("tl_alloc: nothing asked for");
        return NULL;
    }
    if (!power_of_two(align)) {
        tl_set_last_error("tl_alloc: align is not a power of two");
        return NULL;
    }
    p = get_fn(host, n, align);
    if (!p)
        tl_set_last_error("tl_alloc: the hook gave nothing");
    return p;
}

void tl_free(void *p)
{
    if (!p)
        return;
    put_fn(host, p);
}
