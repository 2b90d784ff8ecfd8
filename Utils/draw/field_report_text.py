"""A field report: results of one device as a block of Markdown to paste into an issue."""

from Utils.draw import doc_pages

VERSIONS = ("python", "torch", "triton", "bitsandbytes", "cudnn")


def field_report(rows, records):
    """Return the report: device, driver, versions, shape, quality, and the table.

    rows: selected rows of one device. records: of their runs; without them the report has the
    columns of the rows alone.
    """
    newest = records.get(rows.run_id.max(), {})
    device, versions = newest.get("device") or {}, newest.get("versions") or {}
    known = [f"{name} {versions[name]}" for name in VERSIONS if versions.get(name)]
    grades = rows.groupby("run_id").grade.first().dropna()
    facts = {
        "device": rows.device.iloc[0],
        "memory": f"{device['memory_mib']:,} MiB" if device.get("memory_mib") else "",
        "driver": device.get("driver") or newest.get("driver"),
        "versions": ", ".join(known) or f"torch {rows.torch.iloc[0]}",
        "platform": newest.get("platform"),
        "runs": f"{len(grades)} with timings, {grades.eq('tainted').sum()} tainted",
    }
    lines = [f"- {name}: {value}" for name, value in facts.items() if value]
    return "\n".join([*lines, "", doc_pages.report_table(rows, records)])
