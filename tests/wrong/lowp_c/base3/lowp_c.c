/* lowp_c, with one mistake: see mistakes.yaml. */
#include "tinyllm/numerics.h"

typedef union {
    float f;
    uint32_t u;
} word;

#define INF_BITS 0x7F800000u
#define QNAN 0x7FC00000u

/* ---- e4m3 ---- */

uint8_t tl_f32_to_e4m3(float x)
{
    word w = {x};
    uint8_t sign = (uint8_t)((w.u >> 24) & 0x80u);
    w.u &= 0x7FFFFFFFu;
    if (w.u > INF_BITS)
        return 0x7F;
    if (w.f > 448.0f)
        return sign | 0x7E;
    if (w.f < 0x1p-6f) {
        word big = {w.f + 0x1p14f};
        return sign | (uint8_t)(big.u - 0x46800000u);
    }
    uint32_t odd = (w.u >> 20) & 1u;
    w.u -= 120u << 23;
    w.u += 0x7FFFFu + odd;
    return sign | (uint8_t)(w.u >> 20);
}

float tl_e4m3_to_f32(uint8_t b)
{
    word w;
    uint32_t sign = (uint32_t)(b & 0x80) << 24;
    b &= 0x7F;
    if (b == 0x7F) {
        w.u = QNAN;
        return w.f;
    }
    w.u = (uint32_t)b << 20;
    w.f *= 0x1p120f;
    w.u |= sign;
    return w.f;
}

/* ---- e5m2 ---- */

uint8_t tl_f32_to_e5m2(float x)
{
    word w = {x};
    uint8_t sign = (uint8_t)((w.u >> 24) & 0x80u);
    w.u &= 0x7FFFFFFFu;
    if (w.u > INF_BITS)
        return 0x7F;
    if (w.u == INF_BITS)
        return sign | 0x7C;
    if (w.f > 57344.0f)
        return sign | 0x7B;
    if (w.f < 0x1p-14f) {
        word big = {w.f + 0x1p7f};
        return sign | (uint8_t)(big.u - 0x43000000u);
    }
    uint32_t odd = (w.u >> 21) & 1u;
    w.u -= 112u << 23;
    w.u += 0xFFFFFu + odd;
    return sign | (uint8_t)(w.u >> 21);
}

float tl_e5m2_to_f32(uint8_t b)
{
    return tl_f16_to_f32((uint16_t)(b << 8));
}

/* ---- bfloat16 ---- */

uint16_t tl_f32_to_bf16(float x)
{
    word w = {x};
    if ((w.u << 1) > (INF_BITS << 1))
        return 0x7FC0;
    w.u += 0x7FFFu + ((w.u >> 16) & 1u);
    return (uint16_t)(w.u >> 16);
}

float tl_bf16_to_f32(uint16_t b)
{
    word w;
    w.u = (uint32_t)b << 16;
    if ((b & 0x7FFF) > 0x7F80)
        w.u = QNAN;
    return w.f;
}

/* ---- half ---- */

uint16_t tl_f32_to_f16(float x)
{
    word w = {x};
    uint16_t sign = (uint16_t)((w.u >> 16) & 0x8000u);
    w.u &= 0x7FFFFFFFu;
    if (w.u > INF_BITS)
        return 0x7E00;
    if (w.f >= 65520.0f)
        return sign | 0x7C00;
    if (w.f < 0x1p-14f) {
        word big = {w.f + 0.5f};
        return sign | (uint16_t)(big.u - 0x3F000000u);
    }
    uint32_t odd = (w.u >> 13) & 1u;
    w.u -= 112u << 23;
    w.u += 0xFFFu + odd;
    return sign | (uint16_t)(w.u >> 13);
}

float tl_f16_to_f32(uint16_t b)
{
    word w;
    uint32_t sign = (uint32_t)(b & 0x8000) << 16;
    b &= 0x7FFF;
    if (b > 0x7C00) {
        w.u = QNAN;
        return w.f;
    }
    if (b == 0x7C00) {
        w.u = INF_BITS | sign;
        return w.f;
    }
    w.u = (uint32_t)b << 13;
    w.f *= 0x1p112f;
    w.u |= sign;
    return w.f;
}

/* ---- arrays ---- */

void tl_f32_to_e4m3_n(const float *x, uint8_t *y, int64_t n)
{
    while (n-- > 0)
        *y++ = tl_f32_to_e4m3(*x++);
}

void tl_e4m3_to_f32_n(const uint8_t *x, float *y, int64_t n)
{
    while (n-- > 0)
        *y++ = tl_e4m3_to_f32(*x++);
}

void tl_f32_to_e5m2_n(const float *x, uint8_t *y, int64_t n)
{
    while (n-- > 0)
        *y++ = tl_f32_to_e5m2(*x++);
}

void tl_e5m2_to_f32_n(const uint8_t *x, float *y, int64_t n)
{
    while (n-- > 0)
        *y++ = tl_e5m2_to_f32(*x++);
}

void tl_f32_to_bf16_n(const float *x, uint16_t *y, int64_t n)
{
    while (n-- > 0)
        *y++ = tl_f32_to_bf16(*x++);
}

void tl_bf16_to_f32_n(const uint16_t *x, float *y, int64_t n)
{
    while (n-- > 0)
        *y++ = tl_bf16_to_f32(*x++);
}

void tl_f32_to_f16_n(const float *x, uint16_t *y, int64_t n)
{
    while (n-- > 0)
        *y++ = tl_f32_to_f16(*x++);
}

void tl_f16_to_f32_n(const uint16_t *x, float *y, int64_t n)
{
    while (n-- > 0)
        *y++ = tl_f16_to_f32(*x++);
}
