"""The two ways to stop that are nobody's bug. Both end in one line, never in a traceback."""


class UserError(Exception):
    """What was asked for cannot be done: the message names the remedy. Exit code 2, no row."""


class Unsupported(Exception):
    """This device or environment cannot run the technique. One row with the reason, exit code 0."""
