"""The rows of a results file that a command shows, with their records."""

import sys
from dataclasses import dataclass

import pandas as pd

from Utils.results import records_file, rows_file, selection, shared_folders


@dataclass(frozen=True)
class ShownRows:
    """Rows of one device, version, model, shape and commit.

    all_rows: of the whole file. left_out: a sentence on those that are not shown, or "". records:
    of the shown runs, by run_id.
    """

    all_rows: pd.DataFrame
    rows: pd.DataFrame
    left_out: str
    records: dict


def reading(path):
    """Return the results file that a command reads, and say so where it is another than `path`."""
    path, sentence = shared_folders.for_reading(path)
    if sentence:
        print(sentence, file=sys.stderr)
    return path


def selected(args, select=selection.select, **options):
    """Return the ShownRows that the settings of a command select. Raises UserError.

    args: results_file, device_name and base. select, options: a function of selection, and more of
    its arguments.
    """
    path = reading(args.results_file)
    all_rows = rows_file.read(path)
    rows, left_out = select(all_rows, args.device_name, base=args.base, **options)
    records = records_file.read(path, rows.run_id.unique())
    return ShownRows(all_rows, rows, left_out, records)
