"""Peak rates of GPUs, from their datasheets."""

# Dense peaks of matrix products, TFLOP/s, accumulating in float32, from NVIDIA's datasheets (A100,
# H100, H200, L4; where they count sparsity, half of it) and from the whitepapers of GA102 and Ada
# (GeForce). Names as torch gives them, matched whole: a longer name can be a slower card.
_COLUMNS = ("float32", "tf32", "bfloat16", "float16")
_PEAKS = {
    "NVIDIA A100-SXM4-40GB": (19.5, 156, 312, 312),
    "NVIDIA A100-SXM4-80GB": (19.5, 156, 312, 312),
    "NVIDIA A100-PCIE-40GB": (19.5, 156, 312, 312),
    "NVIDIA A100 80GB PCIe": (19.5, 156, 312, 312),
    "NVIDIA H100 80GB HBM3": (67, 494.5, 989.5, 989.5),
    "NVIDIA H100 PCIe": (51, 378, 756.5, 756.5),
    "NVIDIA H200": (67, 494.5, 989.5, 989.5),
    "NVIDIA L4": (30.3, 60, 121, 121),
    "NVIDIA GeForce RTX 3090": (35.6, 35.6, 71, 71),
    "NVIDIA GeForce RTX 4090": (82.6, 82.6, 165.2, 165.2),
}
DATASHEET = {name: dict(zip(_COLUMNS, peaks, strict=True)) for name, peaks in _PEAKS.items()}
