/* SPDX-License-Identifier: Apache-2.0
 * Version, names of the status codes, and the hook through which all memory comes.
 * Spec: spec/arena.md, R1-R10.
 * The hook is the library's only global state; it is set before anything is allocated.
 */
#include <stdlib.h>

#include "tinyllm/abi.h"

static const char *const status_names[] = {
    "TL_OK",        "TL_EINVAL",  "TL_ENOMEM", "TL_ESHAPE",       "TL_EDTYPE", "TL_EFULL",
    "TL_ENOTFOUND", "TL_EFORMAT", "TL_EBUSY",  "TL_EUNSUPPORTED", "TL_EIO",
};

enum { N_STATUS = sizeof status_names / sizeof status_names[0] };

static int is_power_of_two(size_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

/* The size of an aligned_alloc must be a multiple of its alignment, and the alignment that of a pointer. */
static void *default_alloc(void *user, size_t n, size_t align)
{
    (void)user;
    size_t a = align < sizeof(void *) ? sizeof(void *) : align;
    if (n > SIZE_MAX - (a - 1)) /* R10: rounding n up would overflow */
        return NULL;
    size_t rounded = (n + a - 1) & ~(a - 1);
    return aligned_alloc(a, rounded);
}

static void default_free(void *user, void *p)
{
    (void)user;
    free(p);
}

static const tl_allocator default_hook = {default_alloc, default_free, NULL};
static tl_allocator hook = {default_alloc, default_free, NULL};

/* R1 */
uint32_t tl_abi_version(void)
{
    return TL_ABI_VERSION;
}

/* R2 */
const char *tl_status_str(tl_status s)
{
    if (s < 0) /* R2: negative */
        return "TL_UNKNOWN";
    if (s >= N_STATUS) /* R2: beyond the last code */
        return "TL_UNKNOWN";
    return status_names[s];
}

/* Copies *a: the caller's struct may go away. */
tl_status tl_set_allocator(const tl_allocator *a)
{
    if (!a) { /* R4: back to the default */
        hook = default_hook;
        return TL_OK;
    }
    if (!a->alloc || !a->free) { /* R5: half a hook */
        tl_set_last_error("tl_set_allocator: alloc or free is NULL");
        return TL_EINVAL;
    }
    hook = *a; /* R4: a copy */
    return TL_OK;
}

void *tl_alloc(size_t n, size_t align)
{
    if (n == 0) { /* R7 */
        tl_set_last_error("tl_alloc: 0 bytes");
        return NULL;
    }
    if (!is_power_of_two(align)) { /* R7 */
        tl_set_last_error("tl_alloc: align is not a power of two");
        return NULL;
    }
    void *p = hook.alloc(hook.user, n, align); /* R6 */
    if (!p)                                    /* R8 */
        tl_set_last_error("tl_alloc: the hook has no memory");
    return p;
}

void tl_free(void *p)
{
    if (!p) /* R9 */
        return;
    hook.free(hook.user, p); /* R6 */
}
