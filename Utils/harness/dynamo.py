"""What torch.compile did in this process."""

import sys


def compiled_graphs():
    """How many graphs torch.compile has compiled in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo.counters["stats"]["unique_graphs"] if dynamo else 0


def compilation():
    """What torch.compile did in this process: a dict, or None where it compiled nothing.

    graphs; recompilations, those of them that replaced one whose assumptions no longer held, and
    their reasons; seconds spent; cache: "cold" where Inductor compiled something, "warm" where all
    of it came from the cache on disk.
    """
    if not compiled_graphs():
        return None
    dynamo = sys.modules["torch._dynamo.utils"]
    metrics = dynamo.get_compilation_metrics()
    # An id is "0/1": the second version of the first function, "0/1_1" another attempt at it.
    reasons = {
        one.compile_id.split("_")[0]: one.recompile_reason
        for one in metrics
        if one.compile_id and one.recompile_reason
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
        "seconds": round(sum(one.duration_us or 0 for one in metrics) / 1e6, 2),
        "cache": cache,
    }
