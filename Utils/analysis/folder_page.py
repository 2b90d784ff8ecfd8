"""Pages of shared results: README.md of a folder, and results/README.md, which lists all."""

from Utils.analysis import attribution, result_tables, text_tables
from Utils.base import files
from Utils.results import records_file, rows_file, selection, shared_folders

MARK = "<!-- folders -->"  # before and behind the list of folders
VERSIONS = ("python", "torch", "triton", "cudnn", "bitsandbytes", "torchao", "driver")


def page(folder):
    """Return the README.md of a folder: device, versions, charts, and the tables of its rows."""
    path = folder / "results.csv"
    rows = rows_file.read(path)
    newest = rows.run_id.max()
    record = records_file.read(path, [newest]).get(newest, {})
    versions = {**record.get("versions", {}), "driver": (record.get("device") or {}).get("driver")}
    facts = [f"{name} {versions[name]}" for name in VERSIONS if versions.get(name)]
    text = [
        f"# {rows.device.iloc[0]}",
        f"Measured until {newest[:4]}-{newest[4:6]}-{newest[6:8]} with {', '.join(facts)}. This "
        "page is made of results.csv and results.jsonl; [environment.txt](environment.txt) is "
        "torch's report.",
    ]
    for _, group in selection.groups(rows):
        text += _tables(path, group)
    charts = sorted(chart.name for chart in folder.glob("*.png"))
    return "\n\n".join([*text, "## Charts", *(f"![{name}]({name})" for name in charts)]) + "\n"


def _tables(path, group):
    """Return the tables of rows of one shape, with their ablation."""
    rows, _ = selection.select(group)
    records = records_file.read(path, rows.run_id.unique())
    tables = result_tables.table(rows, records=records, all_columns=True, in_file=True)
    text = [f"## {selection.describe(rows)}", tables]
    with_variants, _ = selection.select(group, with_variants=True)
    if whole := attribution.whole_of(with_variants):
        credits = attribution.credits(with_variants, whole)
        text += ["### Ablation", attribution.table(credits, in_file=True)]
    return text


def write():
    """Write the page of every folder and the list of all. Return their paths."""
    pages = []
    lines = []
    for path in shared_folders.files():
        rows = rows_file.read(path)
        pages.append(path.with_name("README.md"))
        files.write(pages[-1], page(path.parent))
        link = pages[-1].relative_to(shared_folders.FOLDER).as_posix()
        first = rows.iloc[0]
        counts = rows[rows.status == "ok"][["technique", "round"]].nunique().astype(str)
        device = f"[{first.device}]({link})"
        lines.append((device, path.parent.name, first.torch, first.commit, *counts))
    titles = ("device", "date", "torch", "commit", "techniques", "rounds")
    columns = dict(zip(titles, zip(*lines, strict=True), strict=True))
    table = text_tables.markdown(columns, titles[:4])
    path = shared_folders.FOLDER / "README.md"
    parts = path.read_text().split(MARK) if path.exists() else ["# Results by device\n\n", "", ""]
    files.write(path, MARK.join([parts[0], f"\n{table}\n", parts[-1]]))
    return [*pages, path]
