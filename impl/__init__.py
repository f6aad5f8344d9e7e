"""The reference package: one module per unit of the course, and the given modules.

The given modules (`rng`, `categorical`, `llama`, `tokenizer`, `gguf`) are part of every learner's package and
are not graded.

Dimension letters, the same in every docstring; capital single letters are only ever local names:

    B   batch                 E   head width
    T   query tokens          D   model width
    S   cached tokens         F   hidden width
    H   query heads           V   vocabulary
    K   KV heads              P   pages
    N   generic rows

`f32[T, D]` is an array of float32 with T rows of D, `f64[V]` one float64 per vocabulary id, `i64[]` a scalar.
"""
