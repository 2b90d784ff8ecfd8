"""Measure the ceilings of this device, for the modelled floor of a step.

    python -m Utils.commands.ceilings [--device cuda]

Ceilings are matrix products of each precision and memory bandwidth. The modelled floor of a step is
the roofline of Williams et al. 2009 summed over its parts: each takes the larger of its arithmetic
at the ceiling of its precision and its unavoidable traffic at the ceiling of bandwidth.
"""

from Utils.base import errors, files
from Utils.base.command_line import Parser
from Utils.device import device_choice, measured_ceilings


def main(argv=None):
    """Measure this device's ceilings, once: matrix products and memory bandwidth."""
    parser = Parser("ceilings", main.__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    parser.add_argument("--again", action="store_true", help="measure again")
    args = parser.parse_args(argv)
    device = device_choice.choose(args.device)
    ceilings = None if args.again else measured_ceilings.ceilings(device)
    if ceilings is None:
        ceilings = measured_ceilings.measure(device)
        files.write_json(measured_ceilings.file_of(device), ceilings)
    print(f"{device.name}: ceilings of {measured_ceilings.summary(ceilings)}")


if __name__ == "__main__":
    with errors.one_line("ceilings"):
        main()
