"""Statistics of torch.compile in this process."""

import sys


def compiled_graphs():
    """Return the number of graphs compiled so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo.counters["stats"]["unique_graphs"] if dynamo else 0


def compilation():
    """Return the statistics of torch.compile, a dict, or None where it compiled nothing.

    graphs; recompilations among them, after a guard failed, and their reasons; seconds spent;
    cache: "warm" where all of it came from Inductor's cache on disk, else "cold".
    """
    if not compiled_graphs():
        return None
    dynamo = sys.modules["torch._dynamo.utils"]
    metrics = dynamo.get_compilation_metrics()
    # An id is "0/1": the second version of the first function, "0/1_1" another attempt at it.
    reasons = {
        metric.compile_id.split("_")[0]: metric.recompile_reason
        for metric in metrics
        if metric.compile_id and metric.recompile_reason
    }
    inductor, autograd = dynamo.counters["inductor"], dynamo.counters["aot_autograd"]
    cache = None
    if inductor["fxgraph_cache_miss"]:
        cache = "cold"
    elif inductor["fxgraph_cache_hit"] or autograd["autograd_cache_hit"]:
        cache = "warm"
    return {
        "graphs": compiled_graphs(),
        "recompilations": len(reasons),
        "recompile_reasons": [reason[:200] for reason in reasons.values()],
        "seconds": round(sum(metric.duration_us or 0 for metric in metrics) / 1e6, 2),
        "cache": cache,
    }
