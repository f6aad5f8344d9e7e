/* SPDX-License-Identifier: Apache-2.0
 * float32 to small floats and back: one encoder and one decoder for all but bfloat16.  Spec: spec/lowp_c.md.
 * The bodies are branch-free, and the scalar and array forms share them, so both give the same codes (R16).
 */
#include <math.h>
#include <string.h>

#include "clones.h"
#include "tinyllm/numerics.h"

#ifdef TL_AVX512
#include <immintrin.h>
#endif

enum {
    F32_MANTISSA = 23,
    F32_MANTISSA_BITS = 0x7FFFFF,
    F32_BIAS = 127,
    F32_INF = 0x7F800000 /* as bits; larger magnitudes are NaN */
};

static inline int32_t to_bits(float x)
{
    int32_t i;
    memcpy(&i, &x, sizeof i);
    return i;
}

static inline float from_bits(int32_t i)
{
    float x;
    memcpy(&x, &i, sizeof x);
    return x;
}

static inline int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static inline int32_t max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Bits of |x|: for magnitudes, order of bits is order of values. */
static inline int32_t magnitude(float x)
{
    return to_bits(x) & 0x7FFFFFFF;
}

/* R4: the sign bit, moved to the place of bit number `to`. */
static inline int32_t sign_at(float x, int to)
{
    return (int32_t)(((uint32_t)to_bits(x) & 0x80000000u) >> (31 - to));
}

/* The code of a magnitude in a format with `mantissa` bits and `bias`, as if its exponents had no end.
 * A sum with `step` has the last place that the format has at a, so the addition rounds (R1, R2). */
static inline int32_t encode(int32_t a, int mantissa, int bias)
{
    int dropped = F32_MANTISSA - mantissa;
    int32_t smallest_normal = (F32_BIAS + 1 - bias) << F32_MANTISSA;
    int32_t power = max_i32(a & F32_INF, smallest_normal); /* R3: below it the last place stays the same */
    int32_t step = power + (dropped << F32_MANTISSA);
    int32_t rounded = to_bits(from_bits(a) + from_bits(step)) & F32_MANTISSA_BITS; /* with a leading one .. */
    int32_t exponent = (power - smallest_normal) >> dropped; /* .. so this field is less by one */
    return exponent + rounded;
}

/* The value of a code without its sign, as if no code were special. */
static inline float decode(int32_t code, int mantissa, int bias)
{
    int32_t normal = (code << (F32_MANTISSA - mantissa)) + ((F32_BIAS - bias) << F32_MANTISSA);
    float smallest = from_bits((F32_BIAS + 1 - bias - mantissa) << F32_MANTISSA);
    float subnormal = (float)code * smallest; /* R10: the exponent field is 0, so the code is the mantissa */
    return code < (1 << mantissa) ? subnormal : from_bits(normal);
}

static inline float with_sign(float x, int negative)
{
    return negative ? -x : x;
}

/* ---- one number ---- */

static inline uint8_t to_e4m3(float x)
{
    int32_t a = magnitude(x);
    int32_t code = encode(min_i32(a, 0x43E00000), 3, 7); /* R5: 448 at most */
    code |= sign_at(x, 7);
    return (uint8_t)(a > F32_INF ? 0x7F : code); /* R9 */
}

static inline uint8_t to_e5m2(float x)
{
    int32_t a = magnitude(x);
    int32_t code = encode(min_i32(a, 0x47600000), 2, 15); /* R6: 57344 at most .. */
    code = a == F32_INF ? 0x7C : code;                    /* .. but for infinities */
    code |= sign_at(x, 7);
    return (uint8_t)(a > F32_INF ? 0x7F : code); /* R9 */
}

static inline uint16_t to_f16(float x)
{
    int32_t a = magnitude(x);
    int32_t code = encode(min_i32(a, 0x47800000), 10, 15); /* R7: 65536, whose code is that of infinity */
    code |= sign_at(x, 15);
    return (uint16_t)(a > F32_INF ? 0x7E00 : code); /* R9 */
}

static inline uint16_t to_bf16(float x)
{
    uint32_t u = (uint32_t)to_bits(x);
    uint32_t odd = (u >> 16) & 1;             /* R2: an odd code lets a tie go up */
    uint32_t code = (u + 0x7FFF + odd) >> 16; /* R1, R3, R4, R8: a carry into the exponent is right */
    return (uint16_t)(magnitude(x) > F32_INF ? 0x7FC0 : code); /* R9 */
}

static inline float from_e4m3(uint8_t b)
{
    int32_t code = b & 0x7F;
    float y = decode(code, 3, 7);
    y = code == 0x7F ? NAN : y; /* R11 */
    return with_sign(y, b & 0x80);
}

static inline float from_e5m2(uint8_t b)
{
    int32_t code = b & 0x7F;
    float y = decode(code, 2, 15);
    y = code == 0x7C ? INFINITY : y; /* R12 */
    y = code > 0x7C ? NAN : y;       /* R12 */
    return with_sign(y, b & 0x80);
}

static inline float from_f16(uint16_t b)
{
    int32_t code = b & 0x7FFF;
    float y = decode(code, 10, 15);
    y = code == 0x7C00 ? INFINITY : y; /* R12 */
    y = code > 0x7C00 ? NAN : y;       /* R12 */
    return with_sign(y, b & 0x8000);
}

static inline float from_bf16(uint16_t b)
{
    int32_t code = b & 0x7FFF;
    float y = from_bits(code << 16); /* R10, R12: the upper half of a float32 */
    y = code > 0x7F80 ? NAN : y;     /* R13: quiet */
    return with_sign(y, b & 0x8000);
}

/* ---- arrays: x and y do not overlap ---- */

TL_CLONES static void f32_to_e4m3_all(const float *restrict x, uint8_t *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = to_e4m3(x[i]);
}

TL_CLONES static void f32_to_e5m2_all(const float *restrict x, uint8_t *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = to_e5m2(x[i]);
}

TL_CLONES static void f32_to_bf16_all(const float *restrict x, uint16_t *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = to_bf16(x[i]);
}

TL_CLONES static void f32_to_f16_all(const float *restrict x, uint16_t *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = to_f16(x[i]);
}

#ifdef TL_AVX512
/* The first elements, as many sixteens as there are, by the one conversion that the processor itself has. */
TL_AVX512 static int64_t f32_to_f16_wide(const float *restrict x, uint16_t *restrict y, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        __m256i code = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); /* R1, R2 */
        __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        code = _mm256_mask_blend_epi16(is_nan, code, _mm256_set1_epi16(0x7E00)); /* R9 */
        _mm256_storeu_si256((__m256i *)(void *)(y + i), code);
    }
    return i;
}
#endif

TL_CLONES static void e4m3_to_f32_all(const uint8_t *restrict x, float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = from_e4m3(x[i]);
}

TL_CLONES static void e5m2_to_f32_all(const uint8_t *restrict x, float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = from_e5m2(x[i]);
}

TL_CLONES static void bf16_to_f32_all(const uint16_t *restrict x, float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = from_bf16(x[i]);
}

TL_CLONES static void f16_to_f32_all(const uint16_t *restrict x, float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = from_f16(x[i]);
}

/* ---- the interface ---- */

uint8_t tl_f32_to_e4m3(float x)
{
    return to_e4m3(x);
}

uint8_t tl_f32_to_e5m2(float x)
{
    return to_e5m2(x);
}

uint16_t tl_f32_to_bf16(float x)
{
    return to_bf16(x);
}

uint16_t tl_f32_to_f16(float x)
{
    return to_f16(x);
}

float tl_e4m3_to_f32(uint8_t b)
{
    return from_e4m3(b);
}

float tl_e5m2_to_f32(uint8_t b)
{
    return from_e5m2(b);
}

float tl_bf16_to_f32(uint16_t b)
{
    return from_bf16(b);
}

float tl_f16_to_f32(uint16_t b)
{
    return from_f16(b);
}

void tl_f32_to_e4m3_n(const float *x, uint8_t *y, int64_t n)
{
    f32_to_e4m3_all(x, y, n);
}

void tl_f32_to_e5m2_n(const float *x, uint8_t *y, int64_t n)
{
    f32_to_e5m2_all(x, y, n);
}

void tl_f32_to_bf16_n(const float *x, uint16_t *y, int64_t n)
{
    f32_to_bf16_all(x, y, n);
}

void tl_f32_to_f16_n(const float *x, uint16_t *y, int64_t n)
{
    int64_t done = 0;
#ifdef TL_AVX512
    if (tl_has_avx512())
        done = f32_to_f16_wide(x, y, n);
#endif
    f32_to_f16_all(x + done, y + done, n - done);
}

void tl_e4m3_to_f32_n(const uint8_t *x, float *y, int64_t n)
{
    e4m3_to_f32_all(x, y, n);
}

void tl_e5m2_to_f32_n(const uint8_t *x, float *y, int64_t n)
{
    e5m2_to_f32_all(x, y, n);
}

void tl_bf16_to_f32_n(const uint16_t *x, float *y, int64_t n)
{
    bf16_to_f32_all(x, y, n);
}

void tl_f16_to_f32_n(const uint16_t *x, float *y, int64_t n)
{
    f16_to_f32_all(x, y, n);
}
