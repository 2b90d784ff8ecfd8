"""The half of doctor that imports torch.

    python -m Utils.doctor.torch_side SETTINGS

It may crash or hang, so it runs in a subprocess and prints each answer at once, as a line of JSON.
"""

import json
import os
import sys
from argparse import Namespace
from dataclasses import asdict

import Utils.run  # noqa: F401  with it comes all that a script imports
from Utils.doctor.device_probes import device, driver, gpu, torch_build
from Utils.doctor.findings import Finding, ask, topic_of
from Utils.doctor.run_probes import corpus, processor, step
from Utils.doctor.technique_status import techniques
from Utils.doctor.toolchain_probes import compilers, native_packages

WITHOUT_GPU = "run nvidia-smi; DEVICE=cpu does without the GPU"


def answers(args):
    """Yield Findings and TechniqueStatuses. A Finding announces each probe."""
    without_device = (torch_build, processor, driver, device)
    for probe in (*without_device, gpu, compilers, corpus, step, techniques):
        if hasattr(args, "hardware") or probe in without_device:
            yield Finding(topic_of(probe), "check ended", "asking", WITHOUT_GPU, ("run",))
            yield from ask(probe, args)
    yield from ask(native_packages, args)  # last, as they crash more often


def main():
    args = Namespace(**json.loads(sys.argv[1]))
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries is no answer
    for answer in answers(args):
        print(json.dumps({type(answer).__name__: asdict(answer)}), file=lines, flush=True)
    os._exit(0)  # libraries may crash when they are unloaded


if __name__ == "__main__":
    main()
