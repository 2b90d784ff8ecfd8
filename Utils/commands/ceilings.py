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
    rates = [f"{precision} {rate:,.2f}" for precision, rate in ceilings["matmul_tflops"].items()]
    emulated = ceilings["emulated_tflops"].items()
    rates += [f"{precision} {rate:.2g} (emulated)" for precision, rate in emulated]
    memory = f"memory {ceilings['bandwidth_gb_s']:,.0f} GB/s"
    print(f"{device.name}: ceilings of matrix products in TFLOP/s: {', '.join(rates)}; {memory}")


if __name__ == "__main__":
    with errors.one_line("ceilings"):
        main()
