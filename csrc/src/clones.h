/* clones.h -- what is asked of the compiler beyond C11; all of it is empty where the compiler does not know it.
 *
 * TL_CLONES: one function, compiled for three levels of x86-64, chosen when the library is loaded.  Empty on other
 * processors and other C libraries too (it needs ifunc).  Levels, not names of chips: "arch=haswell" would match
 * that chip only.
 *
 * TL_SSE2: defined where every machine of the build has these instructions.
 * TL_AVX512: a function that may use them; tl_has_avx512() says whether the machine that runs it has them.  Not
 * defined where the compiler cannot tell.
 *
 * TL_RARE: a function off the usual way.  Inlined, it would make its caller save registers on every call.
 * TL_LIKELY, TL_UNLIKELY: which way a condition usually goes.
 *
 * -DTL_PLAIN gives C11 alone.
 */
#ifndef TINYLLM_CLONES_H
#define TINYLLM_CLONES_H

#include <stdint.h> /* defines __GLIBC__ where there is one */

#if defined(TL_PLAIN)
#define TL_CLONES
#elif defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define TL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TL_CLONES
#endif

#if defined(__SSE2__) && !defined(TL_PLAIN)
#define TL_SSE2
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(TL_PLAIN)
#define TL_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
static inline int tl_has_avx512(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#endif

#if defined(__GNUC__) && !defined(TL_PLAIN)
#define TL_RARE __attribute__((noinline, cold))
#define TL_LIKELY(condition) __builtin_expect((condition) != 0, 1)
#define TL_UNLIKELY(condition) __builtin_expect((condition) != 0, 0)
#else
#define TL_RARE
#define TL_LIKELY(condition) (condition)
#define TL_UNLIKELY(condition) (condition)
#endif

/* The number of the lowest bit that is set; x is not 0. */
static inline unsigned tl_lowest_bit(uint64_t x)
{
#if defined(__GNUC__) && !defined(TL_PLAIN)
    return (unsigned)__builtin_ctzll(x);
#else
    unsigned bit = 0;
    for (; (x & 1) == 0; x >>= 1)
        bit++;
    return bit;
#endif
}

#endif
