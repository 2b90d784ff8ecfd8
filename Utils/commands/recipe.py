"""Print the measured set of techniques with the largest certain speedup.

The evidence and the lines for other loops follow. The techniques are also written as a script.
"""

from pathlib import Path

from Utils.analysis import recipe_pages, recommendation
from Utils.analysis.summary import summarize
from Utils.base import files, paths, tool_packages
from Utils.base.command_line import SELECTION, Parser
from Utils.base.errors import naming
from Utils.results import study
from Utils.scripts.ladder import split


def main(*words):
    args = Parser("recipe", __doc__, *SELECTION, "recipe").parse_args(words)
    chosen = study.study_of_command(args)
    summary = summarize(chosen)
    recommended = recommendation.recommend(summary)

    # The recipe as a script.
    path = Path(args.recipe or paths.CACHE / "recipe" / "recipe.py")
    recipe = recommended.fastest
    if recipe and recipe.script:  # a user's own script stays as it is
        files.claim(path, is_recipe)
        if args.recipe:  # elsewhere than in the cache a missing folder is a typing error
            with naming(path):
                path.parent.stat()
        files.write(path, recipe_pages.script(recipe, recommended.described))

    # The page, and the patch of a user's script.
    print(recipe_pages.page(recommended, path))
    recipe_patch = tool_packages.find("own_script", "recipe_patch")
    if recipe and recipe_patch and not recipe.script:
        print(recipe_patch.page(recipe, summary, args.results_file))
    if chosen.left_out:
        print(f"\n{chosen.left_out}")
    if recipe and recipe.script:
        print("\nnext: copy the lines into your training loop")


def is_recipe(path):
    """Return whether a file is a recipe that was not changed by hand."""
    doc, code = split(path.read_text(errors="replace"))
    return recipe_pages.mark(code) in doc
