"""All switches by the names of their techniques, in the order in which they are thrown."""

from Utils.own_script.float16_switch import Float16
from Utils.own_script.loader_switch import PrefetchingLoader
from Utils.own_script.switches import (
    BrainFloat16,
    ChannelsLast,
    CudaGraphs,
    CudnnBenchmark,
    EightBitOptimizer,
    FlashAttention,
    FusedOptimizer,
    GradientCheckpointing,
    TensorFloat32,
    TorchCompile,
)

SWITCHES = {
    switch.name: switch
    for switch in (
        TensorFloat32,
        BrainFloat16,
        Float16,
        TorchCompile,
        FlashAttention,
        FusedOptimizer,
        EightBitOptimizer,
        CudaGraphs,
        GradientCheckpointing,
        PrefetchingLoader,
        ChannelsLast,
        CudnnBenchmark,
    )
}
