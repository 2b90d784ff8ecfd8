"""A new technique: a copy of its parent, and for one in beyond/ a test to fill in."""

import importlib.util
import keyword
import re
import textwrap

from Utils.base import command_line, files, paths
from Utils.base.errors import UserError, unknown
from Utils.scripts import ladder

TO_FILL_IN = "FILL IN"  # a script or test with these words is not finished
# Words that mean several scripts or none, and modules that Python imports at its start.
RESERVED = {"ladder", "none", "sitecustomize", "usercustomize"}
DOC = """\
{fill_in} the mechanism, as a noun phrase.

{fill_in} in two or three sentences why the hardware likes it.

Parent: {parent}
{needs}
Gains:  nothing: {fill_in} time, memory or nothing, then why
Costs:  {costs}{fill_in} what it costs, or nothing
See:    {fill_in} a paper or a page of documentation
"""
TEST = '''\
"""A technique of beyond/{folder}: {fill_in} what it promises."""

import pytest
import torch

PARENT = "{parent}"
NAME = "{name}"


def test_it_trains_as_its_parent_does(train):
    """{fill_in} the tolerance: 0 if the arithmetic is the parent's."""
    parent = train(PARENT)
    child = train(NAME)
    assert parent.losses[0] != parent.losses[-1]
    assert child.losses == pytest.approx(parent.losses, rel=2**-8)  # bfloat16 has 8 bits
    for weight_name, weight in child.model.named_parameters():
        assert not torch.equal(weight, child.first[weight_name]), f"{{weight_name}} is not trained"


# {fill_in} a test of the gain: fewer bytes, kernels or waits than the parent has.
'''


def write(target, parent):
    """Copy a technique's script under a new name. Return the written files' paths from ROOT.

    target: NAME for the top level, or FOLDER/NAME for beyond/FOLDER, which gets a test too. Raises
    UserError; nothing is written if a file exists.
    """
    folder, _, name = target.rpartition("/")
    script = _path(folder, name)

    # The parent's source with a docstring to fill in. Losses that differ from the baseline's for a
    # stated reason do so in a child too.
    technique = ladder.get(parent)
    needs = textwrap.fill(
        ", ".join(technique.needs) or "nothing",
        width=98,
        initial_indent="Needs:  ",
        subsequent_indent=" " * 8,
        break_long_words=False,
    )
    costs = f"{technique.stated_parity}; " if technique.stated_parity else ""
    doc = DOC.format(fill_in=TO_FILL_IN, parent=parent, needs=needs, costs=costs)
    texts = {script: f'"""{doc}"""{technique.code}'}

    if folder:
        test = paths.ROOT / f"tests/test_beyond_{name}.py"
        texts[test] = TEST.format(fill_in=TO_FILL_IN, folder=folder, parent=parent, name=name)

    for path in texts:
        if path.exists():
            raise UserError(f"{path.relative_to(paths.ROOT)} exists", "choose another name with T=")
    for path, text in texts.items():
        files.write(path, text)
    return [path.relative_to(paths.ROOT).as_posix() for path in texts]


def _path(folder, name):
    """Return the path of a new script. Raises UserError for a name that it cannot have."""
    if not re.fullmatch(r"[a-z]\w*", name, re.ASCII | re.IGNORECASE) or keyword.iskeyword(name):
        remedy = "as in make new T=my_idea PARENT=fused_optimizer"
        problem = "a name is of letters, digits and underscores, and no word of Python"
        raise UserError(f"T={name}: {problem}", remedy)

    scripts = ladder.techniques()
    if name in scripts:
        path = scripts[name].path.relative_to(paths.ROOT)
        raise UserError(f"T={name}: {path} has that name", "choose another")
    if name in RESERVED.union(*command_line.targets().values()):
        raise UserError(f"T={name}: a word of the Makefile or its settings", "choose another")

    if not folder:
        script = paths.ROOT / f"{name}.py"
        if not script.exists() and importlib.util.find_spec(name):
            raise UserError(f"T={name}: would hide Python's module {name}", "choose another")
        return script
    folders = sorted(file.parent.name for file in paths.ROOT.glob("beyond/*/__init__.py"))
    if folder not in folders:
        raise unknown(f"T={folder}/{name}: no beyond/{folder}", folder, folders)
    return paths.ROOT / "beyond" / folder / f"{name}.py"
