"""Print device, driver, versions and the table as Markdown, to paste into an issue."""

from Utils.analysis import result_tables
from Utils.results.selection import selected

VERSIONS = ("python", "torch", "triton", "bitsandbytes", "cudnn")


def main(args):
    shown = selected(args)
    rows = shown.rows
    newest = shown.records.get(rows.run_id.max(), {})
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
    print(*(f"- {name}: {value}" for name, value in facts.items() if value), sep="\n")
    options = {"in_file": True, "whole": shown.with_variants}
    print(f"\n{result_tables.table(rows, shown.left_out, shown.records, **options)}")
