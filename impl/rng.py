"""Random numbers and hashes: one generator for the whole system, the same bits in every language.

Arithmetic is unsigned: 64-bit state modulo 2^64, 32-bit outputs modulo 2^32, logical shifts.

Source  O'Neill 2014, HMC-CS-2014-0905 (PCG-XSH-RR 64/32); Steele, Lea & Flood 2014, OOPSLA (SplitMix64);
        Fowler, Noll & Vo, the FNV-1a hash with 64 bits; Carter & Wegman 1979, universal hashing
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MULT = 6364136223846793005  # of PCG's 64-bit linear congruential generator
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the step of SplitMix64
FNV_OFFSET = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3
PURPOSES = {"init": 1, "dropout": 2, "shuffle": 3, "sample": 4, "mutation": 5}

_M32 = (1 << 32) - 1
_M64 = (1 << 64) - 1


class PCG32:
    """A 64-bit linear congruential generator whose output is a permuted 32-bit word.

    Attributes
        seed  int, in [0, 2^64): the seed given, modulo 2^64; drawing does not change it

    >>> [hex(word) for word in (PCG32(42).next_u32(), PCG32(0).next_u32())]
    ['0xa15c02b7', '0x47c28b93']
    """

    def __init__(self, seed: int, seq: int = 54) -> None:
        """Start the stream `seq` at `seed`; streams of different seq never meet.

        Shapes
            seed  int, taken modulo 2^64
            seq   int, the number of the stream, taken modulo 2^63
        """
        self.seed = seed & _M64
        self._inc = (seq << 1 | 1) & _M64  # odd, or the period is shorter than 2^64
        self._state = 0
        self.next_u32()
        self._state = (self._state + self.seed) & _M64  # after the first step, before the second
        self.next_u32()

    def next_u32(self) -> int:
        """Return the next word.

        Shapes
            returns  int, in [0, 2^32)

        State
            advances by one step

        >>> rng = PCG32(42)
        >>> [hex(rng.next_u32()) for _ in range(3)]
        ['0xa15c02b7', '0x7b47f409', '0xba1d3330']
        """
        old = self._state
        self._state = (old * MULT + self._inc) & _M64
        word = ((old >> 18 ^ old) >> 27) & _M32  # the output is made of the state before the step
        turn = old >> 59
        return (word >> turn | word << (-turn & 31)) & _M32

    def uniform(self) -> float:
        """Return the next multiple of 2^-53 in [0, 1): 27 bits of one word, 26 of the next.

        Shapes
            returns  float, in [0, 1)

        Numerics
            exact: 53 bits fit a float64, so 1.0 is never reached by rounding

        State
            advances by two steps

        >>> PCG32(0).uniform()
        0.2803122753265841
        """
        high, low = self.next_u32() >> 5, self.next_u32() >> 6  # 27 and 26 bits, drawn in this order
        return (high << 26 | low) * 2.0**-53

    def uniforms(self, n: int) -> NDArray[np.float64]:
        """Return n uniforms in the order of n calls of `uniform`.

        Shapes
            n        int, >= 0
            returns  f64[N] with N = n, a new array

        Errors
            ValueError  n < 0

        State
            advances by 2 n steps

        >>> PCG32(0).uniforms(2).tolist()
        [0.2803122753265841, 0.4892241428740438]
        """
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        return np.array([self.uniform() for _ in range(n)], dtype=np.float64)

    def below(self, n: int) -> int:
        """Return an integer in [0, n), every one equally likely.

        Shapes
            n        int, in [1, 2^32]
            returns  int, in [0, n)

        Errors
            ValueError  n < 1 or n > 2^32

        State
            advances by one step, or by more when words are refused

        >>> rng = PCG32(0)
        >>> [rng.below(10) for _ in range(4)]
        [1, 3, 4, 2]
        """
        if not 1 <= n <= 1 << 32:
            raise ValueError(f"n must be in [1, 2^32], got {n}")
        least = (1 << 32) % n  # from here on a multiple of n words is left, so r mod n has no bias
        while (word := self.next_u32()) < least:
            pass
        return word % n

    def shuffle(self, xs: MutableSequence[Any]) -> None:
        """Permute xs in place, every order equally likely (Fisher-Yates from the end).

        Shapes
            xs  a mutable sequence of any items

        State
            draws `below(i + 1)` for i from len(xs) - 1 down to 1

        >>> xs = list(range(10))
        >>> PCG32(0).shuffle(xs)
        >>> xs
        [0, 3, 5, 4, 8, 9, 7, 6, 2, 1]
        """
        for i in range(len(xs) - 1, 0, -1):
            j = self.below(i + 1)  # i itself is allowed, or no item could stay in its place
            xs[i], xs[j] = xs[j], xs[i]

    def substream(self, purpose: str) -> PCG32:
        """Return the stream of one purpose, a function of the seed and not of the draws made so far.

        Shapes
            purpose  str, a key of PURPOSES
            returns  PCG32, new

        Errors
            KeyError  purpose is not in PURPOSES

        State
            does not change this generator

        >>> PCG32(0).substream("sample").next_u32()
        3444971639
        """
        purpose_id = PURPOSES[purpose]
        return PCG32(child_seed(self.seed, purpose_id), seq=purpose_id)

    def state(self) -> tuple[int, int]:
        """Return (state, increment), enough to go on from here later.

        Shapes
            returns  two ints, in [0, 2^64); the second is odd

        >>> [hex(word) for word in PCG32(42).state()]
        ['0x185706b82c2e03f8', '0x6d']
        """
        return self._state, self._inc

    def set_state(self, s: tuple[int, int]) -> None:
        """Go on from a pair that `state` returned.

        Shapes
            s  two ints, taken modulo 2^64; the second is odd

        Errors
            ValueError  the increment is even

        State
            replaces state and increment, keeps `seed`

        >>> rng = PCG32(0)
        >>> rng.set_state(PCG32(42).state())
        >>> hex(rng.next_u32())
        '0xa15c02b7'
        """
        state, inc = s
        if inc % 2 == 0:
            raise ValueError(f"the increment must be odd, got {inc}")
        self._state, self._inc = state & _M64, inc & _M64


def mix64(z: int) -> int:
    """Mix 64 bits so that every input bit moves about half of the output bits; one to one.

    Shapes
        z        int, in [0, 2^64)
        returns  int, in [0, 2^64)

    >>> mix64(0), hex(mix64(1))
    (0, '0x5692161d100b05e5')
    """
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _M64
    return z ^ z >> 31


def splitmix64(x: int) -> int:
    """Return the first output of SplitMix64 with state x: mix64(x + GOLDEN).

    Output n of a generator seeded with x is `splitmix64(x + (n - 1) * GOLDEN)`.

    Shapes
        x        int, taken modulo 2^64
        returns  int, in [0, 2^64)

    >>> splitmix64(1234567)
    6457827717110365317
    """
    return mix64((x + GOLDEN) & _M64)


def child_seed(seed: int, purpose_id: int) -> int:
    """Derive the seed of one purpose: mix64(seed + purpose_id * GOLDEN).

    Shapes
        seed        int, taken modulo 2^64
        purpose_id  int, >= 0; those in use are the values of PURPOSES
        returns     int, in [0, 2^64)

    >>> hex(child_seed(0, PURPOSES["sample"]))
    '0xf88bb8a8724c81ec'
    """
    return mix64((seed + purpose_id * GOLDEN) & _M64)


def fnv1a64(data: bytes, h: int = FNV_OFFSET) -> int:
    """Hash bytes with FNV-1a: for each byte, xor it in, then multiply by FNV_PRIME.

    `fnv1a64(b, fnv1a64(a))` is `fnv1a64(a + b)`, so data may come in pieces.

    Shapes
        data     bytes, possibly empty
        h        int, in [0, 2^64), the hash of what came before
        returns  int, in [0, 2^64)

    >>> hex(fnv1a64(b"a"))
    '0xaf63dc4c8601ec8c'
    """
    for byte in data:
        h = (h ^ byte) * FNV_PRIME & _M64
    return h


def universal_hash(x: int, a: int, b: int, p: int, m: int) -> int:
    """Hash x into m buckets: ((a x + b) mod p) mod m, with a and b drawn at random.

    Shapes
        x        int, in [0, p) for the collision bound to hold
        a        int, in [1, p)
        b        int, in [0, p)
        p        int, a prime
        m        int, >= 1
        returns  int, in [0, m)

    Errors
        ValueError  a not in [1, p), or b not in [0, p), or m < 1

    >>> universal_hash(10, a=3, b=7, p=13, m=5)
    1
    """
    if not 1 <= a < p:
        raise ValueError(f"a must be in [1, p), got a = {a}, p = {p}")
    if not 0 <= b < p:
        raise ValueError(f"b must be in [0, p), got b = {b}, p = {p}")
    if m < 1:
        raise ValueError(f"m must be at least 1, got {m}")
    return (a * x + b) % p % m
