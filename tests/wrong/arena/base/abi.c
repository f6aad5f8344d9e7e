/* tl_abi, with one mistake: see mistakes.yaml. */
#include <stdint.h>
#include <stdlib.h>

#include "tinyllm/abi.h"

static void *default_alloc(void *user, size_t n, size_t align)
{
    (void)user;
    if (align < sizeof(void *))
        align = sizeof(void *);
    if (n > SIZE_MAX - (align - 1))
        return NULL;
    n = (n + align - 1) & ~(align - 1);
    return aligned_alloc(align, n);
}

static void default_free(void *user, void *p)
{
    (void)user;
    free(p);
}

static tl_allocator hook = {default_alloc, default_free, NULL};

static const char *const names[] = {
    "TL_OK",        "TL_EINVAL", "TL_ENOMEM",  "TL_ESHAPE", "TL_EDTYPE",       "TL_EFULL",
    "TL_ENOTFOUND", "TL_EFORMAT", "TL_EBUSY", "TL_EUNSUPPORTED", "TL_EIO",
};

uint32_t tl_abi_version(void)
{
    return TL_ABI_VERSION;
}

const char *tl_status_str(tl_status s)
{
    if (s < 0 || s > TL_EIO)
        return "TL_UNKNOWN";
    return names[s];
}

tl_status tl_set_allocator(const tl_allocator *a)
{
    if (a == NULL) {
        hook = (tl_allocator){default_alloc, default_free, NULL};
        return TL_OK;
    }
    if (a->alloc == NULL || a->free == NULL) {
        tl_set_last_error("tl_set_allocator: alloc and free must both be there");
        return TL_EINVAL;
    }
    hook = *a;
    return TL_OK;
}

void *tl_alloc(size_t n, size_t align)
{
    if (n == 0 || align == 0 || (align & (align - 1)) != 0) {
        tl_set_last_error("tl_alloc: bad size or alignment");
        return NULL;
    }
    void *p = hook.alloc(hook.user, n, align);
    if (p == NULL)
        tl_set_last_error("tl_alloc: no memory");
    return p;
}

void tl_free(void *p)
{
    if (p != NULL)
        hook.free(hook.user, p);
}
