"""Print device, driver, versions and the table as Markdown, to paste into an issue."""

from Utils.base.command_line import SELECTION, Parser
from Utils.draw import doc_pages
from Utils.results.shown_rows import selected

VERSIONS = ("python", "torch", "triton", "bitsandbytes", "cudnn")


def field_report(rows, records):
    """Return the report: device, driver, versions, shape, quality, and the table.

    rows: selected rows of one device. records: of their runs; without them the report has the
    columns of the rows alone.
    """
    newest = records.get(rows.run_id.max(), {})
    device = newest.get("device") or {}
    versions = newest.get("versions") or {}
    known_versions = [f"{name} {versions[name]}" for name in VERSIONS if versions.get(name)]
    grades = rows.groupby("run_id").grade.first().dropna()
    facts = {
        "device": rows.device.iloc[0],
        "memory": f"{device['memory_mib']:,} MiB" if device.get("memory_mib") else "",
        "driver": device.get("driver") or newest.get("driver"),
        "versions": ", ".join(known_versions) or f"torch {rows.torch.iloc[0]}",
        "platform": newest.get("platform"),
        "runs": f"{len(grades)} with timings, {grades.eq('tainted').sum()} tainted",
    }
    lines = [f"- {name}: {value}" for name, value in facts.items() if value]
    return "\n".join([*lines, "", doc_pages.report_table(rows, records)])


def main(argv=None):
    shown = selected(Parser("field-report", __doc__, *SELECTION).parse_args(argv))
    print(field_report(shown.rows, shown.records))
    if shown.left_out:
        print(f"\n{shown.left_out}")
