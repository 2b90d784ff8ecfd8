"""Verdicts on techniques, and advice, from the findings of all probes."""

import math
from dataclasses import dataclass, replace

UNASKED = "not checked"


@dataclass(frozen=True)
class Row:
    technique: str
    status: str  # runs, runs without effect, emulated or unsupported
    reason: str = ""
    remedy: str = ""
    needs: tuple = ()
    lacks: tuple = ()  # those that are not met


def overlay(row, faults):
    """Return the row, unsupported where a fault takes away what it needs."""
    for fault in faults:
        if taken := {"run", *row.needs} & {*fault.blocks}:
            row = replace(row, lacks=sorted({*row.lacks, *taken}))
            if row.status != "unsupported" or row.reason == UNASKED:
                reason = f"{fault.topic}: {fault.what}"
                row = replace(row, status="unsupported", reason=reason, remedy=fault.remedy)
    return row


PRECISIONS = {"bfloat16": "brainFloat16", "float16": "float16_grad_scaler", "tf32": "tensorFloat32"}
SLOW = 0.5  # of the rate in float32: an emulated precision below it gets advice


def advice(findings, rows, most=5):
    """Return at most so many lines, the most important first: dicts of `advice` and `because`, the
    topics whose figures it repeats. Faults come before what could be faster. Only techniques that
    run here are named."""
    facts = {name: value for finding in findings for name, value in finding.figures.items()}
    can = {row.technique for row in rows if row.status in ("runs", "emulated")}
    lines = []

    def say(topic, text, *techniques):
        named = [name for name in techniques if name in can]
        if named or not techniques:
            text = f"{text}: {', '.join(named)}" if named else text
            lines.append({"advice": text, "because": [topic]})

    def lost(fault):
        """Return the number of techniques that this fault alone blocks."""
        return sum(bool(row.lacks) and {*row.lacks} <= {*fault.blocks} for row in rows)

    for fault in sorted((f for f in findings if f.state == "fault"), key=lost, reverse=True):
        if count := lost(fault):
            what = f"{fault.topic} blocks {count} of {len(rows)} techniques"
            say(fault.topic, f"{what} -> {fault.remedy}")
        elif not fault.blocks:
            say(fault.topic, f"{fault.topic}: {fault.what} -> {fault.remedy}")
    for note in findings:
        if note.state == "note" and note.remedy and note.topic in ("gpu", "processor", "threads"):
            say(note.topic, f"{note.what} -> {note.remedy}")
    plain = facts.get("float32_tflops", math.inf)
    for precision, technique in PRECISIONS.items():
        rate = facts.get(f"{precision}_tflops", 0)
        if technique in can and rate > 1.1 * plain:
            text = f"{plain:,.2f} TFLOP/s in float32, {rate:,.2f} in {precision}"
            say("ceilings", f"matrix products reach {text}", technique)
            break
    emulated = facts.get("emulated_bfloat16_tflops", math.inf)
    if emulated < SLOW * plain < math.inf:
        text = f"matrix products reach {plain:,.2f} TFLOP/s in float32, {emulated:.2g} in bfloat16"
        say("ceilings", f"{text}, which is emulated -> use few STEPS")
    elif plain == math.inf and any(row.status == "emulated" for row in rows):
        say("device", "bfloat16 is emulated, which may be slow -> make all says how long it takes")
    if plain == math.inf and facts.get("type") == "cuda" and facts["capability"] >= 7:
        text = f"compute capability {facts['capability']} has tensor cores, idle in plain float32"
        faster = [technique for technique in PRECISIONS.values() if technique in can]
        say("device", text, *(faster[:1] or PRECISIONS.values()))
    if facts.get("scores_mib", 0) >= 64:
        text = f"attention writes and reads {facts['scores_mib']:,.1f} MiB of scores a layer"
        say("step", text, "flash_attention")
    if facts.get("update_ms", 0) >= 0.2 * facts.get("floor_ms", math.inf):
        text = "AdamW's update takes at least "
        text += f"{facts['update_ms']:,.1f} of {facts['floor_ms']:,.1f} ms of a step"
        say("ceilings", text, "fused_optimizer", "larger_batch")
    on_gpu = facts.get("type") in ("cuda", "rocm", "mps")
    if on_gpu and facts.get("tokens", math.inf) <= 2048:
        text = f"{facts['tokens']} tokens per step: the GPU waits for launches"
        say("step", text, "cuda_graphs")
    if on_gpu and facts.get("least_gib", 0) > 0.7 * facts.get("free_gib", math.inf):
        text = f"the baseline takes {facts['least_gib']:.1f} GiB of {facts['free_gib']:.1f} free"
        say("step", text, "gradient_checkpointing", "8bit_optimizer", "fused_cross_entropy")
    if on_gpu and facts.get("usable_cpus", math.inf) <= 2:
        text = f"only {facts['usable_cpus']:g} CPUs for a loader's workers"
        say("processor", text, "data_on_device")
    return lines[:most]
