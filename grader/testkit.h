/* testkit.h -- the grader's own C: guarded buffers, a recording allocator, faults with a name.
 *
 * A library of its own, loaded beside the one under test; it calls nothing of it and gets its functions as
 * pointers.  Fixtures call these functions as they call any other.
 */
#ifndef OL_TESTKIT_H
#define OL_TESTKIT_H

#include <stddef.h>
#include <stdint.h>

/* ---- buffers: the end lies against a page that cannot be touched, the start behind canary bytes ---- */

/* n bytes aligned to align (a power of two, at most 4096), each set to fill; known as name in reports. */
void *tk_buffer(size_t n, size_t align, int fill, const char *name);

/* 0 when nothing around the buffer was written, else the distance of the first such byte from the buffer's
 * start: negative in front of it, n or more behind it. */
int64_t tk_damage(const void *buffer);

/* Gives a buffer back; what is no buffer is ignored. */
void tk_drop(const void *buffer);

/* ---- the recording allocator: install {tk_alloc, tk_release, NULL} as a hook ---- */

void *tk_alloc(void *user, size_t n, size_t align);
void tk_release(void *user, void *p);

/* The next n allocations succeed, every one after them fails; -1: none fails. */
void tk_fail_after(int64_t n);

/* Numbers since tk_forget(): allocations asked for, blocks not yet freed, bytes of the largest request. */
int64_t tk_allocs(void);
int64_t tk_live(void);
size_t tk_largest(void);

/* The first thing done wrong with the allocator, as text; "" when there was nothing. */
const char *tk_misuse(void);

/* The block, counted from 0 in the order of the requests, that holds p, else -1; its offset in *at. */
int64_t tk_block_of(const void *p, size_t *at);

/* Frees what is still live, and starts counting again. */
void tk_forget(void);

/* ---- memory as data ---- */

/* Copies n bytes. */
void tk_copy(void *to, const void *from, size_t n);

/* ---- faults ---- */

/* From now on a fatal signal writes a line that names the signal, the buffer, the distance of the address from
 * its end, and the innermost frames inside the library that holds inside. */
void tk_catch(const void *inside);

/* Writes where the calling thread is in that library after so many seconds; 0 calls it off. */
void tk_watch(double seconds);

#endif
