/* tinyllm/tinyllm.h -- every contract at once. */
#ifndef TINYLLM_TINYLLM_H
#define TINYLLM_TINYLLM_H

#include "tinyllm/abi.h"
#include "tinyllm/arena.h"
#include "tinyllm/ds.h"
#include "tinyllm/kv_pool.h"
#include "tinyllm/numerics.h"
#include "tinyllm/pool.h"
#include "tinyllm/topk.h"

#endif
