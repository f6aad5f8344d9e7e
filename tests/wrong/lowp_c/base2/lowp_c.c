/* lowp_c, with one mistake: see mistakes.yaml. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "tinyllm/numerics.h"

struct fmt {
    int man, bias, bits;
    double largest;
    unsigned over, inf, nan;
};

static const struct fmt E4M3 = {3, 7, 8, 448.0, 0x7E, 0x7E, 0x7F};
static const struct fmt E5M2 = {2, 15, 8, 57344.0, 0x7B, 0x7C, 0x7F};
static const struct fmt HALF = {10, 15, 16, 65504.0, 0x7C00, 0x7C00, 0x7E00};
static const struct fmt BF16 = {7, 127, 16, 0x1.FEp+127, 0x7F80, 0x7F80, 0x7FC0};

static double pow2(int e)
{
    double r = 1.0;
    for (; e > 0; e--)
        r *= 2.0;
    for (; e < 0; e++)
        r *= 0.5;
    return r;
}

static int exponent_of(double v)
{
    uint64_t u;
    memcpy(&u, &v, 8);
    return (int)(u >> 52 & 0x7FF) - 1023;
}

static bool negative(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u >> 31 != 0;
}

static unsigned to_code(const struct fmt *f, float x)
{
    unsigned sign = negative(x) ? 1u << (f->bits - 1) : 0;
    if (isnan(x))
        return f->nan;
    double v = negative(x) ? -(double)x : (double)x;
    if (isinf(v))
        return sign | f->inf;
    if (v == 0)
        return sign;
    int q = exponent_of(v);
    if (q < 1 - f->bias)
        q = 1 - f->bias;
    q -= f->man;
    double t = v / pow2(q);
    unsigned n = (unsigned)t;
    double rest = t - n;
    if (rest > 0.5 || (rest == 0.5 && n % 2 == 1))
        n++;
    if (n * pow2(q) > f->largest)
        return sign | f->over;
    return sign | (((unsigned)(q + f->man + f->bias - 1) << f->man) + n);
}

static float finite_value(const struct fmt *f, unsigned code)
{
    unsigned sign = code >> (f->bits - 1);
    unsigned e = (code & ((1u << (f->bits - 1)) - 1)) >> f->man;
    unsigned m = code & ((1u << f->man) - 1);
    double frac = (double)m / (1u << f->man);
    double v = e ? pow2((int)e - f->bias) * (1 + frac) : pow2(1 - f->bias) * frac;
    return (float)(sign ? -v : v);
}

/* An IEEE-like format: the largest exponent is infinity and NaN. */
static float ieee_value(const struct fmt *f, unsigned code)
{
    unsigned mag = code & ((1u << (f->bits - 1)) - 1);
    if (mag > f->inf)
        return NAN;
    if (mag == f->inf)
        return code >> (f->bits - 1) ? -INFINITY : INFINITY;
    return finite_value(f, code);
}

uint8_t tl_f32_to_e4m3(float x) { return (uint8_t)to_code(&E4M3, x); }
uint8_t tl_f32_to_e5m2(float x) { return (uint8_t)to_code(&E5M2, x); }
uint16_t tl_f32_to_f16(float x) { return (uint16_t)to_code(&HALF, x); }
uint16_t tl_f32_to_bf16(float x) { return (uint16_t)to_code(&BF16, x); }

float tl_e4m3_to_f32(uint8_t b) { return (b & 0x7F) == 0x7F ? NAN : finite_value(&E4M3, b); }
float tl_e5m2_to_f32(uint8_t b) { return ieee_value(&E5M2, b); }
float tl_f16_to_f32(uint16_t b) { return ieee_value(&HALF, b); }
float tl_bf16_to_f32(uint16_t b) { return ieee_value(&BF16, b); }

#define EACH(i, n) for (int64_t i = 0; i < (n); ++i)

void tl_f32_to_e4m3_n(const float *x, uint8_t *y, int64_t n) { EACH(i, n) y[i] = tl_f32_to_e4m3(x[i]); }
void tl_f32_to_e5m2_n(const float *x, uint8_t *y, int64_t n) { EACH(i, n) y[i] = tl_f32_to_e5m2(x[i]); }
void tl_f32_to_f16_n(const float *x, uint16_t *y, int64_t n) { EACH(i, n) y[i] = tl_f32_to_f16(x[i]); }
void tl_f32_to_bf16_n(const float *x, uint16_t *y, int64_t n) { EACH(i, n) y[i] = tl_f32_to_bf16(x[i]); }
void tl_e4m3_to_f32_n(const uint8_t *x, float *y, int64_t n) { EACH(i, n) y[i] = tl_e4m3_to_f32(x[i]); }
void tl_e5m2_to_f32_n(const uint8_t *x, float *y, int64_t n) { EACH(i, n) y[i] = tl_e5m2_to_f32(x[i]); }
void tl_f16_to_f32_n(const uint16_t *x, float *y, int64_t n) { EACH(i, n) y[i] = tl_f16_to_f32(x[i]); }
void tl_bf16_to_f32_n(const uint16_t *x, float *y, int64_t n) { EACH(i, n) y[i] = tl_bf16_to_f32(x[i]); }
