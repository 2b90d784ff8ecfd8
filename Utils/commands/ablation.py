"""Run an ablation, print its table and draw its chart."""

import sys

from Utils.analysis import ablation, selection
from Utils.base import command_line, errors, ladder, results
from Utils.base.command_line import Parser
from Utils.base.errors import UserError
from Utils.draw import ablation_chart, style
from Utils.launch import suite


def main(argv=None):
    """Runs every script and variant that it takes, then prints the table and draws
    plots/ablation. Returns the exit code, that of `suite`."""
    argv = sys.argv[1:] if argv is None else argv
    given = argv[:1] if argv and not argv[0].startswith("-") else []
    whole = given[0] if given else ablation.last_rung()
    flags = argv[len(given) :]
    if ladder.get(whole).parent is None:
        raise UserError(f"{whole} has no technique that could be left out")
    code = suite.main([*ablation.plan(whole), *flags])
    if code > 1:
        return code
    parser = Parser("ablation", main.__doc__)
    command_line.add_settings(parser)
    args, _ = parser.parse_known_args(flags)
    rows, left_out = selection.select(results.read(args.results_file), with_variants=True)
    lines = ablation.credits(rows, whole)
    print("\n" + ablation.table(lines))
    style.save(ablation_chart.draw(rows, lines, whole), f"{args.plotsprefix}ablation")
    if left_out:
        print(left_out)
    return code


if __name__ == "__main__":
    with errors.one_line("ablation"):
        sys.exit(main())
