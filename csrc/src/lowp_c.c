/* SPDX-License-Identifier: Apache-2.0
 * float32 to small floats and back: one encoder and one decoder for all formats.  Spec: spec/lowp_c.md.
 * The bodies are branch-free, and the scalar and array forms share them, so both give the same codes (R16).
 */
#include <math.h>
#include <string.h>

#include "clones.h"
#include "tinyllm/numerics.h"

enum {
    F32_MANTISSA = 23,
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

/* a without its last `drop` bits, to nearest (R1); a carry into the exponent is right. */
static inline int32_t round_off(int32_t a, int drop)
{
    int32_t odd = (a >> drop) & 1; /* R2: an odd code lets a tie go up */
    return (a + (1 << (drop - 1)) - 1 + odd) >> drop;
}

/* The code of a magnitude in a format with `mantissa` bits and `bias`, as if its exponents had no end. */
static inline int32_t encode(int32_t a, int mantissa, int bias)
{
    int32_t smallest_normal = (F32_BIAS + 1 - bias) << F32_MANTISSA;
    int32_t normal = round_off(a - ((F32_BIAS - bias) << F32_MANTISSA), F32_MANTISSA - mantissa);
    /* R3: the last place of this float is the smallest subnormal of the format */
    int32_t adder = (F32_BIAS + 1 - bias - mantissa + F32_MANTISSA) << F32_MANTISSA;
    int32_t subnormal = to_bits(from_bits(a) + from_bits(adder)) - adder;
    return a < smallest_normal ? subnormal : normal;
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
    int32_t code = min_i32(encode(a, 10, 15), 0x7C00); /* R7: 65520 rounds to 65536, which is that code */
    code |= sign_at(x, 15);
    return (uint16_t)(a > F32_INF ? 0x7E00 : code); /* R9 */
}

static inline uint16_t to_bf16(float x)
{
    int32_t a = magnitude(x);
    int32_t code = round_off(min_i32(a, F32_INF), 16); /* R3, R8: the exponents of float32, subnormals and inf too */
    code |= sign_at(x, 15);
    return (uint16_t)(a > F32_INF ? 0x7FC0 : code); /* R9 */
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
    f32_to_f16_all(x, y, n);
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
