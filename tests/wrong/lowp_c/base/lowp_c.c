/* lowp_c, with one mistake: see mistakes.yaml. */
#include <string.h>

#include "tinyllm/numerics.h"

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Rounds v / 2^s to the nearest integer, ties to even. */
static inline uint32_t round_shift(uint32_t v, int s)
{
    if (s > 25)
        return 0;
    if (s == 0)
        return v;
    return (v + ((1u << (s - 1)) - 1) + ((v >> s) & 1)) >> s;
}

/* Code without its sign of the magnitude a, which is no NaN; may run beyond the end of the format. */
static inline uint32_t encode(uint32_t a, int M, int B)
{
    int drop = 23 - M;
    int e = (int)(a >> 23) - 127;
    if (e >= 1 - B)
        return round_shift(a - ((uint32_t)(127 - B) << 23), drop);
    if (a < 0x00800000u)
        return 0;
    return round_shift((a & 0x7FFFFF) | 0x800000, drop + (1 - B - e));
}

/* The value of exponent field and mantissa, all finite. */
static inline float decode(uint32_t c, int M, int B)
{
    uint32_t m = c & ((1u << M) - 1), e = c >> M;
    if (e)
        return float_of(((e + 127 - (uint32_t)B) << 23) | (m << (23 - M)));
    return (float)m * float_of((uint32_t)(127 + 1 - B - M) << 23);
}

static inline float with_sign(float x, int neg)
{
    return neg ? -x : x;
}

uint8_t tl_f32_to_e4m3(float x)
{
    uint32_t u = bits_of(x), a = u & 0x7FFFFFFF, c;
    if (a > 0x7F800000)
        return 0x7F;
    c = encode(a, 3, 7);
    if (c > 0x7E)
        c = 0x7E;
    return (uint8_t)(u >> 31 << 7 | c);
}

float tl_e4m3_to_f32(uint8_t b)
{
    if ((b & 0x7F) == 0x7F)
        return float_of(0x7FC00000);
    return with_sign(decode(b & 0x7F, 3, 7), b >> 7);
}

uint8_t tl_f32_to_e5m2(float x)
{
    uint32_t u = bits_of(x), a = u & 0x7FFFFFFF, c;
    if (a > 0x7F800000)
        return 0x7F;
    if (a == 0x7F800000) {
        c = 0x7C;
    } else {
        c = encode(a, 2, 15);
        if (c > 0x7B)
            c = 0x7B;
    }
    return (uint8_t)(u >> 31 << 7 | c);
}

float tl_e5m2_to_f32(uint8_t b)
{
    uint32_t a = b & 0x7F;
    if (a > 0x7C)
        return float_of(0x7FC00000);
    return with_sign(a == 0x7C ? float_of(0x7F800000) : decode(a, 2, 15), b >> 7);
}

uint16_t tl_f32_to_bf16(float x)
{
    uint32_t u = bits_of(x), a = u & 0x7FFFFFFF;
    if (a > 0x7F800000)
        return 0x7FC0;
    return (uint16_t)(u >> 31 << 15 | round_shift(a, 16));
}

float tl_bf16_to_f32(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    if ((u & 0x7FFFFFFF) > 0x7F800000)
        u |= 0x00400000;
    return float_of(u);
}

uint16_t tl_f32_to_f16(float x)
{
    uint32_t u = bits_of(x), a = u & 0x7FFFFFFF, c;
    if (a > 0x7F800000)
        return 0x7E00;
    c = encode(a, 10, 15);
    if (c > 0x7C00)
        c = 0x7C00;
    return (uint16_t)(u >> 31 << 15 | c);
}

float tl_f16_to_f32(uint16_t b)
{
    uint32_t a = b & 0x7FFF;
    if (a > 0x7C00)
        return float_of(0x7FC00000);
    return with_sign(a == 0x7C00 ? float_of(0x7F800000) : decode(a, 10, 15), b >> 15);
}

#define ARRAY(name, from, to)                          \
    void name##_n(const from *x, to *y, int64_t n)     \
    {                                                  \
        for (int64_t i = 0; i < n; i++)                \
            y[i] = name(x[i]);                         \
    }

ARRAY(tl_f32_to_e4m3, float, uint8_t)
ARRAY(tl_e4m3_to_f32, uint8_t, float)
ARRAY(tl_f32_to_e5m2, float, uint8_t)
ARRAY(tl_e5m2_to_f32, uint8_t, float)
ARRAY(tl_f32_to_bf16, float, uint16_t)
ARRAY(tl_bf16_to_f32, uint16_t, float)
ARRAY(tl_f32_to_f16, float, uint16_t)
ARRAY(tl_f16_to_f32, uint16_t, float)
