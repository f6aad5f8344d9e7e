/* tinyllm/abi.h -- status codes, error slot, allocator hook.  Unit arena, spec/arena.md.
 *
 * Conventions, true of every tinyllm header and not repeated there:
 *   - arrays are contiguous and row-major; counts are int64_t, sizes of containers and in bytes are size_t
 *   - nothing overlaps unless the comment says so
 *   - a tl_status is TL_OK or positive; on failure the error slot names the failing function, and outputs
 *     stay as they were
 *   - memory comes from tl_alloc alone; nothing prints, nothing exits
 */
#ifndef TINYLLM_ABI_H
#define TINYLLM_ABI_H

#include <stddef.h>
#include <stdint.h>

#define TL_ABI_VERSION 1
#define TL_LAST_ERROR_CAP 256

typedef int32_t tl_status;
typedef int32_t tl_dtype;

enum {
    TL_OK = 0,
    TL_EINVAL = 1,       /* bad argument */
    TL_ENOMEM = 2,       /* the hook gave no memory */
    TL_ESHAPE = 3,       /* dimensions do not fit together */
    TL_EDTYPE = 4,       /* wrong element type */
    TL_EFULL = 5,        /* a fixed capacity is used up */
    TL_ENOTFOUND = 6,    /* no such entry */
    TL_EFORMAT = 7,      /* bad bytes: magic, version, length or checksum */
    TL_EBUSY = 8,        /* in use */
    TL_EUNSUPPORTED = 9, /* not available here */
    TL_EIO = 10          /* the operating system refused */
};

enum {
    TL_F32 = 0,
    TL_F16 = 1,
    TL_BF16 = 2,
    TL_F8_E4M3 = 3,
    TL_F8_E5M2 = 4,
    TL_I8 = 5,
    TL_U8 = 6,
    TL_I32 = 7,
    TL_Q4_G = 8
};

/* Where memory comes from: alloc gives n bytes aligned to align or NULL, free takes back what alloc gave. */
typedef struct {
    void *(*alloc)(void *user, size_t n, size_t align);
    void (*free)(void *user, void *p);
    void *user;
} tl_allocator;

/* TL_ABI_VERSION as the library was built. */
uint32_t tl_abi_version(void);

/* The name of a status code ("TL_EINVAL"), "TL_UNKNOWN" for any other number; static text, never NULL. */
const char *tl_status_str(tl_status s);

/* This thread's last error text, "" before the first, valid until its next tl_ call; never NULL.  Given. */
const char *tl_last_error(void);

/* Copies msg into this thread's slot, cut to TL_LAST_ERROR_CAP - 1 bytes; NULL counts as "". Given. */
void tl_set_last_error(const char *msg);

/* Installs a copy of *a as the hook, NULL restores the default; TL_EINVAL when alloc or free is missing. */
tl_status tl_set_allocator(const tl_allocator *a);

/* n bytes aligned to align, a power of two, from the hook; NULL when n is 0, align bad or the hook empty. */
void *tl_alloc(size_t n, size_t align);

/* Gives p back to the hook; NULL is ignored. */
void tl_free(void *p);

#endif
