"""PCG32 (O'Neill 2014, HMC-CS-2014-0905) as the course uses it; all arithmetic is modulo 2^64 or 2^32."""

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1
MULTIPLIER = 6364136223846793005
GOLDEN = 0x9E3779B97F4A7C15
PURPOSES = {"init": 1, "dropout": 2, "shuffle": 3, "sample": 4, "mutation": 5}


class PCG32:
    """One stream of 32-bit words."""

    def __init__(self, seed: int, seq: int = 54) -> None:
        self.seed = seed & MASK64
        self.inc = (seq << 1 | 1) & MASK64
        self.word = 0  # the 64-bit state
        self.next_u32()
        self.word = (self.word + self.seed) & MASK64
        self.next_u32()

    def next_u32(self) -> int:
        old = self.word
        self.word = (old * MULTIPLIER + self.inc) & MASK64
        mixed = (old >> 18 ^ old) >> 27 & MASK32
        turn = old >> 59
        return (mixed >> turn | mixed << (32 - turn) % 32) & MASK32

    def uniform(self) -> float:
        """27 bits of one word above 26 bits of the next, as a multiple of 2^-53."""
        a, b = self.next_u32(), self.next_u32()
        return ((a >> 5) * 2.0**26 + (b >> 6)) * 2.0**-53

    def below(self, n: int) -> int:
        if not 1 <= n <= 1 << 32:
            raise ValueError(f"n is not in [1, 2^32]: {n}")
        while True:
            word = self.next_u32()
            if word >= (1 << 32) % n:
                return word % n

    def substream(self, purpose: str) -> "PCG32":
        """The stream of a purpose: a function of the seed alone, not of what was drawn."""
        number = PURPOSES[purpose]
        return PCG32(mix64((self.seed + number * GOLDEN) & MASK64), number)

    def state(self) -> tuple[int, int]:
        return self.word, self.inc


def mix64(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK64
    return z ^ z >> 31


class ScriptedUniforms:
    """The testkit's double: hands out the given uniforms and raises when it runs dry."""

    def __init__(self, values: list[float]) -> None:
        self.values = [float(value) for value in values]
        self.used = 0

    def uniform(self) -> float:
        if self.used == len(self.values):
            raise RuntimeError(f"drew more than the {len(self.values)} uniforms of the script")
        self.used += 1
        return self.values[self.used - 1]

    def drawn(self) -> int:
        return self.used
