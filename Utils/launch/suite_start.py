"""The start of a suite: impossible settings, ceilings and the duration, before anything runs."""

import signal
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version

from Utils.scripts import ladder


def on_device(args):
    """Return `ladder.on_device` of the device of args; say where it has no bfloat16. A child asks,
    as below."""
    bfloat16 = True
    if args.device != "cpu" and not version("torch").endswith("+cpu"):
        with ProcessPoolExecutor(1) as pool:
            bfloat16 = pool.submit(_has_bfloat16, args.device).result()
    if not bfloat16:
        print(ladder.IN_FLOAT16, flush=True)
    return ladder.on_device(bfloat16)


def _has_bfloat16(device):
    from Utils.device import capabilities, device_choice  # here, as torch takes a second

    return capabilities.has("bfloat16", device_choice.choose(device))


def announce(scripts, args):
    """Measure the ceilings of this device once, and print both them and the duration of a suite.
    Raises UserError for impossible settings.

    A child process does it: one that has used a GPU keeps some of its memory until it ends.
    """
    with ProcessPoolExecutor(1) as pool:
        pool.submit(_announce, scripts, args).result()


def _announce(scripts, args):
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports Ctrl-C
    from Utils.device import measured_ceilings  # these here, as torch takes a second
    from Utils.harness import settings
    from Utils.launch import duration

    settled = settings.Settings(**vars(args) | {"base": ladder.BASELINE})
    settings.settle(settled)
    ceilings = measured_ceilings.here(settled.hardware)
    print(f"{ceilings['device']}: ceilings of {measured_ceilings.summary(ceilings)}")
    print(*duration.sentences(scripts, settled), sep="\n", flush=True)
