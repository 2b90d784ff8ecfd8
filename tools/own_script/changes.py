"""Changes of a switch to a script: what is added to it, at which Spot, as Edits."""

from dataclasses import dataclass

from tools.own_script.source_edits import NoPlace, Source

MODULES = ("functools", "torch")  # that the code of a change may need
START = "start"  # kind of the Spot after the imports of the script
LOOP = "an edit of the training loop"


@dataclass(frozen=True)
class Change:
    """A statement that is added, or a call that is changed, at the Spots of a kind.

    kind: START, model (or a kind of models), or the name of an optimizer's class.
    code: a statement, with {fields} of the Spot. argument: name and text of a keyword argument.
    excluded: names of arguments that the call may not have. helper: a function that the code calls.
    words: for a person who has to place it, if not the code.
    """

    kind: str
    code: str = ""
    argument: tuple[str, str] = ()
    excluded: tuple = ()
    helper: str = ""
    words: str = ""

    def text(self, spot):
        """Return it in one line, for a person to place."""
        if self.code:
            code = (self.words or self.code).format(**{"model": "model"} | spot.fields)
            return " ".join(code.split())
        return f"{self.kind}(..., {'='.join(self.argument)})"

    def edits(self, spot):
        """Return the Edits at a Spot. Raises NoPlace."""
        if spot.reason:
            raise NoPlace(spot.reason)
        source = Source.read(spot.file)
        code = self.helper + self.code
        edits = source.imports(name for name in MODULES if f"{name}." in code)
        if self.helper:
            edits.append(source.after_imports(f"\n\n{self.helper}", order=3))

        if self.kind == START:
            edits.append(source.after_imports(self.code))
        elif self.code:
            statement = source.statement_at(spot.location)
            edits.append(source.after(statement, self.code.format(**spot.fields)))
        else:
            call = source.call_at(spot.location)
            for keyword in call.keywords:
                if keyword.arg in self.excluded:
                    raise NoPlace(f"its call sets {keyword.arg}")
            edits += source.with_argument(call, *self.argument)
        return edits


def edits_of(switch, places):
    """Return (Edits of a switch, pairs of a line and the reason why it has no place).

    Without a place for all of it there are no Edits. places: Spots by kind.
    """
    edits = []
    lines = [(line, LOOP) for line in switch.lines]
    for change in switch.changes:
        for spot in places.get(change.kind, ()):
            try:
                edits += change.edits(spot)
            except NoPlace as problem:
                lines.append((change.text(spot), str(problem)))

    lines = list(dict.fromkeys(lines))
    return [] if lines else list(dict.fromkeys(edits)), lines
