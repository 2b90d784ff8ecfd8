"""Where the time of a step goes, by kind of work, and what to do about it.

    python -m Utils.profile NAME [--cpu] [--memory] [--gpus 2] [flags of the scripts]

NAME is a technique, or all for the ladder, beyond or everything. The script runs as ever, its rows
going to profiles/results.csv; when its last timed step has ended, a few more run under
torch.profiler. profiles/ lies beside the results file, where `make report` looks for it. For each
technique it then holds, in place of what was there,

- NAME.trace.json.gz, for ui.perfetto.dev or chrome://tracing
- NAME.json, the summary
- with --cpu NAME.prof, of cProfile, for `python -m pstats` or snakeviz
- with --memory NAME.memory.pickle, for pytorch.org/memory_viz

Several techniques are stacked in one chart, plots/profile.png. With --gpus, or started by torchrun,
it is a run in several processes, and rank 0 is shown.
"""

# The keys of NAME.json: technique, status (ok, unsupported, out_of_memory), note, device, torch. Of
# a run that is ok as well: run_id, commit, model, batch_size, asked_batch_size, seq_len, dataset,
# threads, needs (what the script declared), timed_median_ms (of the run, without a profiler),
# clock_ms (of the profiled steps by the clock that times runs), profile (a dict that
# `kinds.summarize` describes), advice (lines), python (with --cpu, else None: the functions that
# took longest by themselves, each function, own_ms, total_ms and calls of a step) and files (the
# names of the others here).

import cProfile
import gzip
import json
import os
import pickle
import pstats
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

# That a block freed under the profiler was allocated before it is no news; torch reads this once.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
from tabulate import tabulate
from torch.profiler import record_function

from Utils import hardware, kinds, ladder, launch, limits, record, run, settings
from Utils.advice import advise
from Utils.errors import Unsupported, UserError, one_line
from Utils.kinds import KINDS, WAIT
from Utils.settings import ROOT

STEPS = 4  # are summed up; one before them is discarded, one after closes the last
PYTHON_STEPS, MEMORY_STEPS = 3, 2
PARTS = {
    "data": "waiting for data",
    "dispatch": "dispatch, allocation, autograd",
    "python": "Python",
    "loss": "the loss",
    "softmax": "softmax",
    "norms": "LayerNorm",
    "sums": "sums",
    "transfers": "between host and device",
    "embedding": "rows of the embedding",
    "on the device": "on the device",
}
FUNCTIONS = 8  # of Python's that are shown
NAME = 60  # letters of an operator's name that are shown; a fused one's can be hundreds


def main(argv=None):
    """Profiles one technique or several. Returns the exit code: 0, or 1 where a run failed or did
    not fit into memory, or 2 where the settings are not possible."""
    parser = settings.Parser("profile", __doc__)
    settings.add_settings(parser)
    add = parser.add_argument
    add("name", nargs="?", default="", help="a technique, or all, beyond, everything")
    add("--cpu", action="store_true", help="as well: where Python's time goes, by cProfile")
    add("--memory", action="store_true", help="as well: what was allocated when")
    add("--gpus", default="", help="in how many processes to run it, else in one")
    add("--folder", type=Path, help="where all of it goes, else profiles/ beside the results file")
    args = parser.parse_args(argv)
    args.folder = args.folder or args.results_file.parent / "profiles"
    if not args.name:
        raise UserError(f"T=NAME says what: all, or one of {', '.join(ladder.techniques())}")
    if args.warmup >= args.steps:  # before steps are added that the run knows nothing of
        raise UserError(f"--warmup {args.warmup} of --steps {args.steps} leaves no step to time")
    several = ladder.group({"all": "ladder"}.get(args.name, args.name))
    techniques = several or [ladder.get(args.name)]
    try:
        args.folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=args.folder).close()  # raises where no file can be made
    except OSError as error:
        raise UserError(f"{args.folder}: {error.strerror}") from None
    if several:
        return _profile_all(techniques, args)
    if args.gpus:
        count, args.gpus = launch.one_count(args.gpus, args.device), ""
        command = ["-m", "Utils.profile", args.name, *_flags(args, own=True)]
        return launch.launch(args.name, command, count)
    return _profile(techniques[0], args)


def _flags(args, own=()):
    """The command line of a script with the settings of ours, or, with our `own`, of ourselves."""
    values = {name: value for name, value in vars(args).items() if name != "name"}
    switches = [f"--{name}" for name in ("cpu", "memory") if values.pop(name) and own]
    if not own:
        del values["folder"], values["gpus"]
    return [*switches, *settings.as_flags(values)]


# One technique ----------------------------------------------------------------------------------


def _profile(technique, args):
    import torch._inductor.config as inductor  # here, since without a script there is no need

    inductor.cpp.enable_kernel_profile = True  # else compiled C++ is one dark stretch of the trace
    args.results_file, args.rounds = args.folder / "results.csv", 1
    args.steps += 1 + STEPS + 1 + PYTHON_STEPS * args.cpu + MEMORY_STEPS * args.memory
    note = {"technique": technique.name, "torch": torch.__version__}
    try:
        run.execute(technique, _flags(args), partial(ProfiledRun, technique, args))
        return 0
    except Unsupported as reason:
        note |= {"status": "unsupported", "note": str(reason)}
    except Exception as error:
        if not hardware.is_out_of_memory(error):
            raise  # to the script's own hook, which records a failed run
        note |= {"status": "out_of_memory", "note": "out of memory; a smaller BATCH_SIZE may fit"}
    print(f"{technique.name}: {note['status'].replace('_', ' ')}: {note['note']}", file=sys.stderr)
    with _replacing(args.folder, technique.name) as folder:
        facts = note | {"device": hardware.choose(args.device).name}
        (folder / f"{technique.name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return 0 if note["status"] == "unsupported" else 1


class ProfiledRun(run.Run):
    """A Run whose timed steps are followed by a few under the profiler, on the batches that come
    next. The run is recorded before these begin, so nothing of them is in its figures.

    technique: of `ladder`. wanted: the command line of this module.
    """

    def __init__(self, technique, wanted, args, model, optimizer):
        if isinstance(args.hardware, hardware.MPS):
            raise Unsupported(
                "torch's profiler does not see an Apple GPU; DEVICE=cpu shows the CPU"
            )
        args.steps = wanted.steps - (1 + STEPS + 1)
        args.steps -= PYTHON_STEPS * wanted.cpu + MEMORY_STEPS * wanted.memory
        super().__init__(args, model, optimizer)
        self.technique, self.wanted, self.recorded = technique, wanted, False
        self.clock_ms, self.cprofile, self.history = [], None, None

    def steps(self, batches):
        facts, batches = getattr(batches, "facts", {}), iter(batches)
        yield from super().steps(batches)
        self.dataset_facts = facts
        super().__exit__(None, None, None)
        self.recorded = True
        print(f"  {STEPS} steps under the profiler ...", file=sys.stderr)
        yield from self._profiled(batches)
        if self.wanted.cpu:
            self.cprofile = cProfile.Profile()
            for _ in range(PYTHON_STEPS):
                self.cprofile.enable()
                yield next(batches)
                self.cprofile.disable()
        if self.wanted.memory:
            with self.args.hardware.memory_history() as self.history:
                for _ in range(MEMORY_STEPS):
                    yield next(batches)

    def _profiled(self, batches):
        marks, mark = [], self.args.hardware.mark
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS + 1, repeat=1)
        with torch.profiler.profile(
            schedule=schedule, record_shapes=True, profile_memory=True
        ) as self.profile:
            for _ in range(1 + STEPS + 1):
                marks.append(mark())
                with record_function(WAIT):
                    batch = next(batches)
                yield batch
                self.profile.step()
        self.clock_ms = self.args.hardware.elapsed_ms(marks)[1:]

    def log(self, loss):
        if not self.recorded:
            super().log(loss)

    def __exit__(self, kind, error, trace):
        if kind is not None:
            return
        args, name = self.args, self.technique.name
        if args.rank:  # rank 0's trace is the one that is kept
            return
        with _replacing(self.wanted.folder, name) as folder:
            self.profile.export_chrome_trace(str(folder / f"{name}.trace.json.gz"))
            if self.cprofile:
                self.cprofile.dump_stats(folder / f"{name}.prof")
            if self.history:
                with open(folder / f"{name}.memory.pickle", "wb") as file:
                    pickle.dump(self.history, file)
            files = sorted(path.name for path in folder.iterdir())
            with gzip.open(folder / f"{name}.trace.json.gz") as file:
                events = json.load(file)["traceEvents"]
            on_gpu = isinstance(args.hardware, hardware.CUDA)
            if on_gpu and not any(event.get("cat") == "kernel" for event in events):
                raise UserError(
                    "torch.profiler saw no kernel on the GPU: CUPTI (on AMD roctracer) is missing, "
                    "or may not be used here, as in some containers"
                )
            found = kinds.summarize(
                events, args.needs, limits.ceilings(args.hardware), self._update_bytes()
            )
            summary = self._facts() | {
                "profile": found,
                "advice": advise(found, self.technique, args.needs, args.hardware),
                "python": _functions(self.cprofile) if self.cprofile else None,
                "files": files,
            }
            (folder / f"{name}.json").write_text(json.dumps(summary, indent=1) + "\n")
        print(report(summary, self.wanted.folder))

    def _facts(self):
        from Utils.summary import OWN_BATCH  # here, as it brings pandas and scipy with it

        args, note = self.args, "; ".join(self.args.notes)
        same = ("run_id", "commit", "model", "batch_size", "seq_len", "dataset", "needs")
        asked = re.search(OWN_BATCH, note)
        return {
            "technique": self.technique.name,
            "status": "ok",
            "note": note,
            "device": args.hardware.name,
            "torch": torch.__version__,
            **{name: getattr(args, name) for name in same},
            "asked_batch_size": int(asked[1]) if asked else args.batch_size,
            "threads": torch.get_num_threads(),
            "timed_median_ms": median(args.hardware.elapsed_ms(self.marks)[args.warmup :]),
            "clock_ms": self.clock_ms,
        }

    def _update_bytes(self):
        """What the optimizer cannot but read and write in a step: weights and its state both ways,
        gradients one."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        state = (
            value
            for one in record.optimizers(self.optimizer)
            for values in one.state.values()
            for value in values.values()
            if isinstance(value, torch.Tensor)
        )
        return 3 * sum(p.nbytes for p in trained) + 2 * sum(value.nbytes for value in state)


@contextmanager
def _replacing(folder, name):
    """A folder for the files of one technique. When the block ends well they take the place of the
    old ones, the summary last; else those stay as they were. Raises UserError."""
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as parts:
            yield Path(parts)
            for kind in ("trace.json.gz", "prof", "memory.pickle", "json"):
                new, old = Path(parts) / f"{name}.{kind}", folder / f"{name}.{kind}"
                new.replace(old) if new.exists() else old.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None


def _functions(profile):
    """Where Python's time went, the functions that took longest by themselves first."""
    found = []
    stats = pstats.Stats(profile).stats
    for (file, line, name), (_, calls, own_s, total_s, _) in stats.items():
        place = Path(file)
        if place.is_absolute():
            inside = place.is_relative_to(ROOT)
            file = place.relative_to(ROOT) if inside else Path(*place.parts[-2:])
        found.append(
            {
                "function": name if str(file) == "~" else f"{file}:{line} {name}",
                "own_ms": own_s * 1e3 / PYTHON_STEPS,
                "total_ms": total_s * 1e3 / PYTHON_STEPS,
                "calls": calls / PYTHON_STEPS,
            }
        )
    return sorted(found, key=lambda one: -one["own_ms"])[:FUNCTIONS]


# What is printed --------------------------------------------------------------------------------


def report(summary, folder):
    """A summary in words and tables, its advice last."""
    found = summary["profile"]
    lines = [
        f"{summary['technique']}: {found['steps']} steps under the profiler took "
        f"{found['mean_step_ms']:,.1f} ms each, without it {summary['timed_median_ms']:,.1f} ms "
        "(median)",
        "",
        _table(found["kinds"]),
        "",
    ]
    if all(facts["ceiling_share"] is None for facts in found["kinds"].values()):
        lines += ["No ceiling is known here; `make ceilings` measures them.", ""]
    shown = [one for one in found["operators"] if one["ms"] > 0.01 * found["mean_step_ms"]]
    rows = [
        (one["name"][:NAME], KINDS[one["kind"]], f"{one['ms']:,.2f}", f"{one['calls']:.3g}")
        for one in shown
    ]
    lines += [_grid(rows, ("longest", "kind", "ms a step", "calls a step")), ""]
    if summary["python"]:
        rows = [
            (
                one["function"],
                f"{one['own_ms']:,.2f}",
                f"{one['total_ms']:,.2f}",
                f"{one['calls']:.3g}",
            )
            for one in summary["python"]
        ]
        lines += [_grid(rows, ("in Python", "own ms", "with callees", "calls a step")), ""]
    gap, memory = found["gap"], found["memory"]
    lines.append(
        f"longest stretch outside of torch: {gap['ms']:,.2f} ms a step, between {gap['after']} "
        f"and {gap['before']}"
    )
    lines.append(f"values of tensors that the host reads: {found['reads']:.3g} a step")
    if exchange := found["communication"]:
        lines.append(
            f"collectives are under way for {exchange['ms']:,.2f} ms a step, and "
            f"{exchange['hidden']:.0%} of that is hidden behind what is computed meanwhile"
        )
    if memory["grows"] is not None:
        grows = f"grows by {memory['growth_mib']:,.2f} MiB a step" if memory["grows"] else "stays"
        lines.append(f"memory from step to step: {grows}")
    files = ", ".join(str(folder / name) for name in [*summary["files"]])
    lines += [f"files: {files}", "", "Advice", *(f"- {line}" for line in summary["advice"])]
    return "\n".join(lines)


def _table(found):
    """The kinds of work, and below each what it consists of."""
    rows = []
    for kind, facts in found.items():
        if not facts["ms"]:
            continue
        reached = facts["ceiling_share"]
        reached = "" if reached is None else f"{reached:.0%}"
        bound = f"{facts['bound']}-bound" if facts["bound"] else ""
        rows.append((KINDS[kind], f"{facts['ms']:,.2f}", f"{facts['share']:.1%}", reached, bound))
        if len(facts["parts"]) > 1 or kind == "idle":
            share = facts["share"] / facts["ms"]
            rows += [
                (f"- {PARTS[part]}", f"{ms:,.2f}", f"{ms * share:.1%}", "", "")
                for part, ms in sorted(facts["parts"].items(), key=lambda item: -item[1])
            ]
    return _grid(rows, ("kind", "ms a step", "share", "of the ceiling", ""))


def _grid(rows, headers):
    align = ("left", *["right"] * (len(headers) - 1))
    return tabulate(rows, headers, "github", colalign=align, disable_numparse=True)


# Several techniques -----------------------------------------------------------------------------


def _profile_all(techniques, args):
    """One process each, then the chart."""
    outcomes, found = set(), []
    for number, technique in enumerate(techniques):
        print(f"\n[{number + 1}/{len(techniques)}]", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "Utils.profile", technique.name, *_flags(args, own=True)]
        with subprocess.Popen(command, env=settings.environment()) as process:
            try:
                outcome = process.wait()
            except KeyboardInterrupt:  # the terminal has told it as well: let it end first
                outcome = process.wait()
                if outcome != 130:  # else it said so
                    raise
        if outcome in (2, 130):
            return outcome
        outcomes.add(outcome)
        found.append(_summary(args.folder, technique, outcome))
    from Utils import charts  # here, since one technique needs no chart

    charts.save(draw(found), f"{args.plotsprefix}profile")
    return max(map(bool, outcomes))


def _summary(folder, technique, outcome):
    """What a technique's process has left; of one that left nothing, an old file says nothing."""
    try:
        summary = json.loads((folder / f"{technique.name}.json").read_text())
    except (OSError, ValueError):
        summary = {}
    if outcome and summary.get("status") != "out_of_memory":
        return {"technique": technique.name, "status": "failed", "note": "failed"}
    return summary


def draw(summaries):
    """The kinds of work of each technique, stacked: milliseconds a step, of as many tokens."""
    import seaborn as sns

    from Utils import charts

    colours = dict(zip(KINDS, sns.color_palette("Set2", 8), strict=False))
    colours |= {"copies": "0.45", "communication": "0.25", "other": "0.1", "idle": "0.88"}
    measured = [summary for summary in summaries if summary["status"] == "ok"]
    title = "Where the time of a step goes"
    height = 1.8 + 0.5 * len(summaries)
    figure, axes = charts.figure(height, title, *(map(_described, measured[:1])))
    widths = [_per_batch(summary) * summary["profile"]["mean_step_ms"] for summary in measured]
    widest = max(widths, default=1)
    for y, summary in enumerate(summaries):
        if summary["status"] != "ok":
            axes.text(
                0.01 * widest, y, charts.brief(summary["note"]), va="center", color=charts.GREY
            )
            continue
        left = 0.0
        for kind, facts in summary["profile"]["kinds"].items():
            width = facts["ms"] * _per_batch(summary)
            axes.barh(y, width, left=left, color=colours[kind], height=0.7, zorder=2)
            if width > 0.06 * widest:
                dark = kind in ("copies", "communication", "other")
                how = {"color": "white" if dark else "black", "size": "small", "zorder": 3}
                axes.text(left + width / 2, y, _digits(width), ha="center", va="center", **how)
            left += width
        axes.text(left + 0.015 * widest, y, _digits(left), va="center", fontweight="bold")
    for kind, words in KINDS.items():
        if any(summary["profile"]["kinds"][kind]["ms"] for summary in measured):
            axes.barh(0, 0, color=colours[kind], label=words)
    if measured:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    axes.set_xlim(0, widest * 1.12)
    axes.set_yticks(range(len(summaries)), [_name(summary) for summary in summaries])
    axes.set_ylim(len(summaries) - 0.5, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("ms a step under the profiler, which slows it; idle: nothing is computed")
    charts.grey_labels(axes, [summary["status"] != "ok" for summary in summaries])
    return figure


def _described(summary):
    return (
        f"{summary['device']}, torch {summary['torch']}, {summary['model']}, "
        f"{summary['asked_batch_size']}x{summary['seq_len']} tokens a step, {summary['dataset']}, "
        f"{summary['profile']['steps']} steps each, commit {summary['commit'] or 'unknown'}"
    )


def _digits(ms):
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _per_batch(summary):
    """By what a step's times are multiplied to be those of as many tokens as the others'."""
    return summary["asked_batch_size"] / summary["batch_size"]


def _name(summary):
    if summary["status"] != "ok" or _per_batch(summary) == 1:
        return summary["technique"]
    return f"{summary['technique']} (batch {summary['batch_size']})"


if __name__ == "__main__":
    with one_line("profile"):
        sys.exit(main())
