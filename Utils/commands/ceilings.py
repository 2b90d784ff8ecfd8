"""Measure the ceilings of this device, from which the shortest step is modelled.

    python -m Utils.commands.ceilings [--device cuda]

The ceilings are measured, not looked up: matrix products of each precision, and copying memory.
A step is then modelled as its products and its update, each at the larger of two times: its
arithmetic at the ceiling of its precision, and its unavoidable traffic at the ceiling of memory.
That is the roofline of Williams et al. 2009, summed over the parts of a step.
"""

import json

from Utils.base import errors
from Utils.base.command_line import Parser
from Utils.base.errors import UserError
from Utils.device import devices, limits


def main(argv=None):
    """Measures what this device can do at most, once: matrix products and memory bandwidth."""
    parser = Parser("ceilings", main.__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    parser.add_argument("--again", action="store_true", help="though they are known already")
    args = parser.parse_args(argv)
    device = devices.choose(args.device)
    found = None if args.again else limits.ceilings(device)
    if found is None:
        found, path = limits.measure(device), limits.file_of(device)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found, indent=1) + "\n")
        except OSError as error:
            raise UserError(
                f"{path}: {error.strerror}", "set CACHE_DIR to another folder"
            ) from None
    rates = (f"{precision} {rate:,.2f}" for precision, rate in found["matmul_tflops"].items())
    print(
        f"{device.name} can do at most, in TFLOP/s of matrix products: {', '.join(rates)}; "
        f"memory {found['bandwidth_gb_s']:,.0f} GB/s"
    )


if __name__ == "__main__":
    with errors.one_line("ceilings"):
        main()
