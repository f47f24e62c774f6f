"""`edge-agent audits`: answers whose truth is known, as a table to certify anew on."""

from __future__ import annotations

import argparse
import csv
import sys

from firstline_core.errors import ConfigError
from firstline_edge.audits.samples import Sample, read, table
from firstline_edge.cli.output import complain, say_json
from firstline_edge.cli.parser import FAILED, OK
from firstline_edge.settings.load import load
from firstline_edge.state import samples_path


def command(arguments: argparse.Namespace) -> int:
    """Prints the samples of one certificate; the agent need not run."""
    settings = load(arguments.config, overrides=dict(arguments.overrides))
    path = samples_path(settings.state_dir)
    try:
        samples = list(read(path))
    except OSError as error:
        complain(f"{path} cannot be read: {error.strerror}; run this as the agent's user.")
        return FAILED
    try:
        chosen = latest(samples, arguments.model, arguments.since)
    except ConfigError as error:
        complain(f"{path}: {error.message}")
        return FAILED
    rows = list(table(chosen))
    if arguments.output == "json":
        say_json({"model": chosen[0].model, "version": chosen[0].version, "rows": rows})
        return OK
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return OK


def latest(samples: list[Sample], model: str | None, since_wall_s: float | None = None) -> list[Sample]:
    """Those of the certificate that the newest sample belongs to: scores of another model are no evidence.

    Raises:
        ConfigError: there are none, or none so new, or of several models and none is named.
    """
    names = sorted({sample.model for sample in samples})
    if not names:
        raise ConfigError("No answer was audited or escalated under a certificate yet.")
    if model is None and len(names) > 1:
        raise ConfigError(f"Name a model with --model; there are {', '.join(names)}.")
    wanted = [sample for sample in samples if model in (None, sample.model)]
    if not wanted:
        raise ConfigError(f"No answer of a model '{model}' is known; there are those of {', '.join(names)}.")
    found = [sample for sample in wanted if sample.key == wanted[-1].key]
    recent = [sample for sample in found if since_wall_s is None or sample.at >= since_wall_s]
    if not recent:
        raise ConfigError(f"None of its {len(found)} answers is so new; give --since an earlier time.")
    return recent
