"""Roundings of floating-point types, which show how much the figures of a training vary by them."""

NOTES = "notes.npz"  # name of the file with notes on a run
# One rounding of each type of matrix products, as a share of a number.
ROUNDING = {
    "float64": 2**-53,
    "float32": 2**-24,
    "tf32": 2**-11,
    "float16": 2**-11,
    "bfloat16": 2**-8,
}
