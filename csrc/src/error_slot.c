/* SPDX-License-Identifier: Apache-2.0
 * The error slot: one text a thread.  Given: this file is linked as it is and is part of no unit.
 */
#include <string.h>

#include "tinyllm/abi.h"

static _Thread_local char slot[TL_LAST_ERROR_CAP];

/* The slot of the calling thread. */
const char *tl_last_error(void)
{
    return slot;
}

/* Bytes of msg that fit, the final zero not counted. */
static size_t text_bytes(const char *msg)
{
    size_t n = 0;
    while (n < TL_LAST_ERROR_CAP - 1 && msg[n] != '\0')
        n++;
    return n;
}

/* Copies; msg may be text of the slot itself. */
void tl_set_last_error(const char *msg)
{
    const char *text = msg ? msg : "";
    size_t n = text_bytes(text);
    memmove(slot, text, n);
    slot[n] = '\0';
}
