"""Shapes of JSON values: what a file must have to be read."""

LARGEST = 1e300  # the largest number allowed


class Positive(float):
    """The shape of a number above 0."""


def check(value, shape, name="it"):
    """Raise ValueError, with the name of a part, if a JSON value does not have a shape.

    shape: str, bool, int, dict or list; float, which also takes whole numbers; Positive; a list
        with the shape of all items; a dict of shapes by key, in which "*" stands for every key.
        One that ends in "?" may be missing or None, and one of "*" None.
    name: of the value in the reason.
    """
    if isinstance(shape, list) and isinstance(value, list):
        for n, item in enumerate(value, 1):
            check(item, shape[0], f"item {n} of {name}")
    elif isinstance(shape, dict) and isinstance(value, dict):
        for key, part in shape.items():
            is_optional = key.endswith(("?", "*"))
            present = value if key == "*" else {key.removesuffix("?")} & value.keys()
            if not present and not is_optional:
                raise ValueError(f"{key} is missing")
            for name_of_part in present:
                if value[name_of_part] is not None or not is_optional:
                    check(value[name_of_part], part, ascii(name_of_part)[1:-1])
    elif not _is_of_type(value, shape):
        raise ValueError(f"{name} cannot be {repr(value)[:40]}")


def _is_of_type(value, shape):
    if shape in (float, Positive):
        least = 0 if shape is Positive else -LARGEST
        return type(value) in (int, float) and least < value < LARGEST
    return type(value) is shape
