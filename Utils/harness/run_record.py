"""Rows of a run, and its record."""

import os
from datetime import UTC, datetime

import torch

from Utils.harness import environment

SETTINGS = ("steps", "warmup", "batch_size", "seq_len", "model", "dataset", "seed")


def row(args, status):
    """Return the columns that all rows of a run share, a dict."""
    return {
        "run_id": args.run_id,
        "base": args.base,
        "round": args.round,
        "seed": args.seed,
        "technique": args.technique,
        "status": status,
        "batch_size": args.batch_size,
        "requested_batch_size": args.requested_batch_size,
        "seq_len": args.seq_len,
        "unit": args.unit,
        "model": args.model,
        "dataset": args.dataset,
        "world_size": args.world_size,
        "device": args.hardware.name,
        "torch": torch.__version__,
        "commit": args.commit,
        "note": "; ".join(args.notes),
    }


def record(args, status):
    """Return the record of a run, its line of results.jsonl, a dict."""
    return {
        "run_id": args.run_id,
        "base": args.base,
        "unit": args.unit,
        "technique": args.technique,
        "status": status,
        "started": args.started.isoformat(),
        "ended": datetime.now(UTC).isoformat(),
        "command": [args.technique, *map(str, args.argv)],
        "settings": {name: getattr(args, name) for name in SETTINGS},
        "chosen_automatically": args.auto,
        "round": args.round,
        "suite": os.environ.get("SUITE"),
        "commit": args.commit,
        "device": args.hardware.describe(),
        **environment.environment(),
        "source": args.source,
        "notes": args.notes,
    }
