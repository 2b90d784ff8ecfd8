"""Print the fewest techniques that are statistically as fast as the fastest, with evidence and
lines for other loops, and write them as a script."""

from argparse import Namespace
from pathlib import Path

from Utils.analysis import recipe_lines, recipe_page, recommendation
from Utils.base import command_line, paths
from Utils.base.errors import UserError
from Utils.device import device_choice
from Utils.launch import suite_runner
from Utils.results import rows_file, selection
from Utils.results.shown_rows import selected


def run(found, args, rows):
    """Run the recipes beside the baseline and the fastest in new rounds, and check whether the
    rows agree. Return the lines to print and the exit code."""
    device = device_choice.choose(args.device).name
    if device != rows.device.iloc[0]:
        problem = f"RUN=1: the rows are of {rows.device.iloc[0]}, and this is {device}"
        raise UserError(problem, "set DEVICE or DEVICE_NAME")
    recipes = (found[key] for key in ("fastest", "least_memory") if found[key])
    entries = {entry["name"]: entry for entry in recipes}
    names = {found["fastest"]["base"]: None, found["best"]["name"]: None, **entries}
    if len(names) == 1:
        return [f"{[*names][0]} is all there is to run"], 0
    first = int(rows["round"].max()) + 1
    rounds = args.rounds if args.rounds > 1 else max(2, rows["round"].nunique())
    flags = {name.lower(): value for name, value in found["settings"].items()}
    flags |= {"rounds": rounds, "round": first, "device": args.device, "seed": args.seed}
    flags |= {"results_file": args.results_file, "timeout": args.timeout}
    settings = Namespace(**command_line.defaults() | flags, precision=None)
    outcome = suite_runner.run(suite_runner.named(names), settings, suite_runner.say)
    if outcome.code > 1:
        return [], outcome.code
    print(suite_runner.table(outcome, args.results_file))
    new = rows_file.read(args.results_file)
    new, _ = selection.select(new[new["round"] >= first], with_variants=True)
    return [recommendation.agreement(entry, new) for entry in entries.values()], outcome.code


def main(argv=None):
    names = (*command_line.SELECTION, "recipe", "run", "rounds", "device", "seed", "timeout")
    args = command_line.Parser("recipe", __doc__, *names).parse_args(argv)
    shown = selected(args, with_variants=True)
    rows = shown.rows
    found = recommendation.recommend(rows, shown.records)
    path, written = Path(args.recipe or paths.CACHE / "recipe" / "recipe.py"), {}
    if found["fastest"]:
        written["fastest"] = path
        if found["least_memory"] and found["least_memory"]["name"] != found["fastest"]["name"]:
            written["least_memory"] = path.with_stem(f"{path.stem}_least_memory")
    for key, place in written.items():
        recipe_lines.write(place, recipe_lines.script(found[key], found["described"]))
    print(recipe_page.text(found, written))
    if shown.left_out:
        print(f"\n{shown.left_out}")
    if args.run and found["fastest"]:
        lines, code = run(found, args, rows)
        print("", *lines, sep="\n")
        return code
    return 0
