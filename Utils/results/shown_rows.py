"""The rows of a results file that a command shows, with their records."""

import sys
from dataclasses import dataclass

import pandas as pd

from Utils.results import records_file, rows_file, selection, shared_folders


@dataclass(frozen=True)
class ShownRows:
    """Rows of one device, version, model, shape and commit.

    left_out: a sentence on rows that are not shown, or "". records: of the shown runs, by run_id.
    with_variants: the rows, and those of an ablation.
    """

    rows: pd.DataFrame
    left_out: str
    records: dict
    with_variants: pd.DataFrame


def reading(path):
    """Return the results file that a command reads, and say so where it is another than `path`."""
    path, sentence = shared_folders.for_reading(path)
    if sentence:
        print(sentence, file=sys.stderr)
    return path


def selected(args):
    """Return the ShownRows that the settings of a command select. Raises UserError.

    args: results_file, device_name and base.
    """
    path = reading(args.results_file)
    all_rows = rows_file.read(path)
    rows, left_out = selection.select(all_rows, args.device_name, base=args.base)
    options = {"base": args.base, "with_variants": True, "newest_of": rows}
    with_variants, _ = selection.select(all_rows, args.device_name, **options)
    records = records_file.read(path, with_variants.run_id.unique())
    return ShownRows(rows, left_out, records, with_variants)
