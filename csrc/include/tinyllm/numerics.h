/* tinyllm/numerics.h -- reciprocal square root, exponential, low-precision conversions.
 * Units rsqrt, expf, lowp_c: spec/rsqrt.md, spec/expf.md, spec/lowp_c.md.
 * Allocates nothing, keeps no state, sets no error.  Array forms take n elements, none when n <= 0. */
#ifndef TINYLLM_NUMERICS_H
#define TINYLLM_NUMERICS_H

#include "tinyllm/abi.h"

/* 1/sqrt(x) within 2 ulp; +0: +inf, -0: -inf, +inf: +0, negative or NaN: NaN. */
float tl_rsqrtf(float x);

/* y[i] = tl_rsqrtf(x[i]); y may equal x. */
void tl_rsqrt_f32(const float *x, float *y, int64_t n);

/* e^x within 2 ulp while normal, a subnormal may be +0; above 0x1.62e42ep+6: +inf; -inf: +0; NaN: NaN. */
float tl_expf(float x);

/* y[i] = tl_expf(x[i]); y may equal x. */
void tl_exp_f32(const float *x, float *y, int64_t n);

/* Nearest e4m3 code, ties to even; beyond 448, infinities too: 0x7E or 0xFE; NaN: 0x7F. */
uint8_t tl_f32_to_e4m3(float x);

/* The value of an e4m3 code, exact; 0x7F and 0xFF: NaN. */
float tl_e4m3_to_f32(uint8_t b);

/* Nearest e5m2 code, ties to even; finite beyond 57344: 0x7B or 0xFB; infinities kept; NaN: 0x7F. */
uint8_t tl_f32_to_e5m2(float x);

/* The value of an e5m2 code, exact. */
float tl_e5m2_to_f32(uint8_t b);

/* Nearest bfloat16 bits, ties to even; overflow: infinity; NaN: 0x7FC0. */
uint16_t tl_f32_to_bf16(float x);

/* The value of bfloat16 bits, exact; NaN codes: a NaN. */
float tl_bf16_to_f32(uint16_t b);

/* Nearest binary16 bits, ties to even; from 65520 on: infinity; NaN: 0x7E00. */
uint16_t tl_f32_to_f16(float x);

/* The value of binary16 bits, exact; NaN codes: a NaN. */
float tl_f16_to_f32(uint16_t b);

/* y[i] = tl_f32_to_e4m3(x[i]) */
void tl_f32_to_e4m3_n(const float *x, uint8_t *y, int64_t n);

/* y[i] = tl_e4m3_to_f32(x[i]) */
void tl_e4m3_to_f32_n(const uint8_t *x, float *y, int64_t n);

/* y[i] = tl_f32_to_e5m2(x[i]) */
void tl_f32_to_e5m2_n(const float *x, uint8_t *y, int64_t n);

/* y[i] = tl_e5m2_to_f32(x[i]) */
void tl_e5m2_to_f32_n(const uint8_t *x, float *y, int64_t n);

/* y[i] = tl_f32_to_bf16(x[i]) */
void tl_f32_to_bf16_n(const float *x, uint16_t *y, int64_t n);

/* y[i] = tl_bf16_to_f32(x[i]) */
void tl_bf16_to_f32_n(const uint16_t *x, float *y, int64_t n);

/* y[i] = tl_f32_to_f16(x[i]) */
void tl_f32_to_f16_n(const float *x, uint16_t *y, int64_t n);

/* y[i] = tl_f16_to_f32(x[i]) */
void tl_f16_to_f32_n(const uint16_t *x, float *y, int64_t n);

#endif
