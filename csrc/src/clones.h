/* clones.h -- what is asked of the compiler beyond C11; all of it is empty where the compiler does not know it.
 *
 * TL_CLONES: one function, compiled for three levels of x86-64, chosen when the library is loaded.  Empty on other
 * processors and other C libraries too (it needs ifunc); -DTL_CLONES= gives the plain build.  Levels, not names of
 * chips: "arch=haswell" would match that chip only.
 *
 * TL_RARE: a function off the usual way.  Inlined, it would make its caller save registers on every call.
 */
#ifndef TINYLLM_CLONES_H
#define TINYLLM_CLONES_H

#include <stdint.h> /* defines __GLIBC__ where there is one */

#ifndef TL_CLONES
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define TL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TL_CLONES
#endif
#endif

#ifdef __GNUC__
#define TL_RARE __attribute__((noinline, cold))
#else
#define TL_RARE
#endif

#endif
