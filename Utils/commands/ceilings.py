"""Measure this device's ceilings, once: matrix products and memory bandwidth.

Ceilings are matrix products of each precision and memory bandwidth. The modelled floor of a step is
the roofline of Williams et al. 2009 summed over its parts: each takes the larger of its arithmetic
at the ceiling of its precision and its unavoidable traffic at the ceiling of bandwidth.

Next: make all
"""

from Utils.base.command_line import Parser
from Utils.device import device_choice, measured_ceilings


def main(*words):
    parser = Parser("ceilings", __doc__, "device")
    parser.add_argument("--again", action="store_true", help="measure again")
    args = parser.parse_args(words)
    device = device_choice.choose(args.device)
    ceilings = measured_ceilings.stored_or_measured(device, args.again)
    print(f"{device.name}: ceilings of {measured_ceilings.summary(ceilings)}")
