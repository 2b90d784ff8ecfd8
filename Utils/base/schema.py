"""Shapes of JSON values: what a file must have to be read."""


class Positive(float):
    """The shape of a number above 0."""


WORDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Positive: "a number above 0",
    None: "null",
}
LARGEST = 1e300  # of a number


def problem(value, shape, name="it"):
    """Return why a JSON value does not have a shape, "" if it has.

    shape: one of WORDS, where float also takes whole numbers; Positive; a list with the shape of
        all items; a dict of shapes by key, in which "*" stands for every key, and one that ends
        in "?" may be missing; a tuple of shapes, any of which will do.
    name: of the value in the sentence.
    """
    return next(_problems(value, shape, name), "")


def _problems(value, shape, name):
    if isinstance(shape, tuple):
        problems = [problem(value, alternative, name) for alternative in shape]
        if "" not in problems:
            yield problems[0]
        return

    kind = type(shape) if isinstance(shape, dict | list) else shape
    if kind in (float, Positive):
        least = 0 if kind is Positive else -LARGEST
        is_valid = type(value) in (int, float) and least < value < LARGEST
    else:
        is_valid = value is None if kind is None else type(value) is kind
    if not is_valid:
        yield f"{name} is {repr(value)[:40]}, not {WORDS[kind]}"
    elif isinstance(shape, list):
        for n, item in enumerate(value, 1):
            yield from _problems(item, shape[0], f"item {n} of {name}")
    elif isinstance(shape, dict):
        for key, part in shape.items():
            present = value if key == "*" else {key.removesuffix("?")} & value.keys()
            if not present and not key.endswith(("?", "*")):
                yield f"{key} is missing"
            for name_of_part in present:
                yield from _problems(value[name_of_part], part, ascii(name_of_part)[1:-1])
