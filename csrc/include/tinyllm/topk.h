/* tinyllm/topk.h -- the k largest of n.  Unit topk, spec/topk.md.  Allocates nothing, keeps no state. */
#ifndef TINYLLM_TOPK_H
#define TINYLLM_TOPK_H

#include "tinyllm/abi.h"

/* idx[k], val[k]: the k largest of x[n], largest first, equal values by index; TL_EINVAL k < 0, k > n, n >
 * INT32_MAX, a NaN or a needed NULL. */
tl_status tl_topk_f32(const float *x, int64_t n, int64_t k, int32_t *idx, float *val);

#endif
