"""Print the fewest techniques that are statistically as fast as the fastest, with evidence and
lines for other loops, and write them as a script."""

from pathlib import Path

from Utils.analysis import recommendation
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.results import study


def main(args):
    chosen = study.of_command(args)
    recommended = recommendation.recommend(summarize(chosen))
    path = Path(args.recipe or paths.CACHE / "recipe" / "recipe.py")
    script_paths = {}
    for title, recipe in recommended.recipes.items():
        if recipe.script:  # a user's own script stays as it is
            text = recommendation.script(recipe, recommended.described)
            recommendation.write(path, text)
            script_paths[title] = path
            path = path.with_stem(f"{path.stem}_least_memory")
    print(recommendation.page(recommended, script_paths))
    if chosen.left_out:
        print(f"\n{chosen.left_out}")
