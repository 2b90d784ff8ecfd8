"""Shapes of JSON values: what a file must have to be read."""

WORDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    None: "null",
}
LARGEST = 1e300  # of a number


class Positive(float):
    """The shape of a number above 0."""


def problem(value, shape, name="it"):
    """Return why a JSON value does not have a shape, "" if it has.

    shape: one of WORDS, where float also takes whole numbers; Positive; a list with the shape of
        all items; a dict of shapes by key, in which "*" stands for every key, and one that ends
        in "?" may be missing; a tuple of shapes, any of which will do.
    name: of the value in the sentence.
    """
    if isinstance(shape, tuple):
        problems = [problem(value, alternative, name) for alternative in shape]
        return "" if "" in problems else problems[0]

    kind = shape if shape is None or isinstance(shape, type) else type(shape)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind in (float, Positive):
        is_valid = number and abs(value) < LARGEST and (kind is float or value > 0)
    else:
        is_valid = value is None if kind is None else type(value) is kind
    if not is_valid:
        words = "a number above 0" if kind is Positive else WORDS[kind]
        return f"{name} is {repr(value)[:40]}, not {words}"

    parts = []
    if isinstance(shape, list):
        parts = [(f"item {n} of {name}", item, shape[0]) for n, item in enumerate(value, 1)]
    elif isinstance(shape, dict):
        for key, part in shape.items():
            present = value if key == "*" else {key.removesuffix("?")} & value.keys()
            if not present and not key.endswith(("?", "*")):
                return f"{key} is missing"
            parts += [(ascii(each)[1:-1], value[each], part) for each in present]
    return next(filter(None, (problem(part, inner, name) for name, part, inner in parts)), "")
