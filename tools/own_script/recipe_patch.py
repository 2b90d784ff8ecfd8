"""The recipe for a user's script as a patch, beside its results in patches/."""

import os
from dataclasses import dataclass
from pathlib import Path

from tools.own_script import script_patch
from tools.own_script.source_edits import Edit
from tools.own_script.user_code import digest_of
from Utils.analysis import result_tables
from Utils.base import files, paths
from Utils.base.errors import UserError
from Utils.base.text import plural
from Utils.scripts.identity import PATCH

MARK = f"Written by {paths.COMMAND} recipe, which replaces it unless it was changed"


@dataclass(frozen=True)
class RecipePatch:
    """A recipe as a patch.

    file: where it is written. top: the folder of its paths. techniques: those that it has. lines:
    texts on those that it lacks. diff: "" if it has none.
    """

    file: Path
    top: Path
    techniques: list[str]
    lines: list[str]
    diff: str

    @property
    def digest(self):
        return paths.digest(self.diff)


def is_unchanged(file):
    """Return whether a file is a patch as `written` has written it."""
    first, _, text = file.read_bytes().decode(errors="replace").partition("\n")
    return first == f"{MARK}: {paths.digest(text)}"


def written(recipe, summary, results_file):
    """Write the patch of a recipe with a header, if it has edits. Return its RecipePatch.

    Raises UserError if the script has changed since it was measured, or if a file is there that
    someone has changed.
    """
    study = summary.study
    patch = patch_of(recipe, study, results_file)
    if patch.diff:
        files.claim(patch.file, is_unchanged)
        parts = [
            f"Techniques: {', '.join(patch.techniques)}",
            f"Of {study.base} at {study.all_rows.commit.iloc[0]}",
            f"{recipe.name}: {recipe.speedup} over {study.base}",
            *as_measured(patch, summary),
            patch.diff,
        ]
        text = "\n".join(parts)
        files.write(patch.file, f"{MARK}: {paths.digest(text)}\n{text}")

    return patch


def patch_of(recipe, study, results_file):
    """Return the RecipePatch of a recipe, from the record of its newest run. Raises UserError."""
    rows = study.all_rows
    run_ids = rows.run_id[(rows.technique == recipe.name) & (rows.status == "ok")]
    own_script = study.records.get(run_ids.max(), {}).get("own_script", {})
    if "edits" not in own_script:
        raise UserError(f"{recipe.name}: its run recorded no edits", "measure it again")
    for file, digest in own_script["sources"].items():
        if digest_of(file) != digest:
            raise UserError(f"{file}: has changed since it was measured", "measure it again")

    top = script_patch.top_of(own_script["file"])
    edits = []
    lines = []
    placed = []
    for technique in recipe.techniques:
        of_switch, without_place = own_script["edits"][technique]
        of_switch = [Edit(os.path.abspath(file), *change) for file, *change in of_switch]
        outside = {edit.file for edit in of_switch if not Path(edit.file).is_relative_to(top)}
        without_place += [[f"an edit of {file}", f"it is not below {top}"] for file in outside]
        if without_place:
            lines += [f"{technique}: {line} ({reason})" for line, reason in without_place]
        else:
            placed.append(technique)
            edits += of_switch

    file = results_file.parent / "patches" / f"{study.base}.patch"
    return RecipePatch(file, top, placed, lines, script_patch.diffs(edits, top))


def as_measured(patch, summary):
    """Return sentences on the runs of the script with a patch, if there are some."""
    study = summary.study
    name = f"{study.base}+{PATCH}"
    run_ids = study.all_rows.run_id[study.all_rows.technique == name]
    record = study.records.get(run_ids.max(), {})
    if record.get(PATCH, {}).get("digest") != patch.digest:
        return []

    figures = summary.scripts[name]
    sentences = [f"as this patch: {figures.speedup} over {study.base}"]
    sentences += result_tables.patch_remarks(summary, figures)
    if figures.loss_difference.words:
        sentences.append(f"its loss is {figures.loss_difference.words}")
    return sentences


def page(recipe, summary, results_file):
    """Write the patch of a recipe. Return it as text, with what it lacks and the next commands."""
    study = summary.study
    try:
        patch = written(recipe, summary, results_file)
    except UserError as error:
        return f"\nno patch: {error}"

    parts = []
    file = os.path.relpath(patch.file)
    if file.startswith(os.pardir):
        file = str(patch.file)
    if patch.diff:
        count = f"{len(patch.techniques)} of {plural(len(recipe.techniques), 'technique')}"
        parts.append(f"## Patch: {file}, with {count}")
        parts.append("".join(f"    {line}\n" for line in patch.diff.splitlines()).rstrip())
        parts += as_measured(patch, summary)
    if patch.lines:
        parts.append("\n".join(["Not in the patch:", *(f"- {line}" for line in patch.lines)]))
    if patch.diff:
        newest = study.records[max(study.records)]
        settings = " ".join(newest.get("own_script", {}).get("settings", ()))
        parts.append(
            f"next: {script_patch.apply_command(patch.file, patch.top)}\n"
            f"      {paths.COMMAND} pair {settings} B={file}"
        )
    return "\n" + "\n\n".join(parts)
