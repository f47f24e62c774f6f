"""`edge-agent audit list`: answers whose truth is known, as a table for a new certificate."""

from __future__ import annotations

import argparse
import csv
import sys

from firstline_core.command_line import EXIT_FAILED
from firstline_core.errors import ConfigError
from firstline_edge.audits.samples import Sample, read, table
from firstline_edge.cli.output import check_has_run, explained_refusal, print_error, print_json
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.state import StatePaths


def command(arguments: argparse.Namespace) -> int:
    """Prints the samples of one certificate; the agent need not run."""
    settings = load_settings(arguments)
    check_has_run(settings.state_dir)
    path = StatePaths(settings.state_dir).samples_path
    with explained_refusal(path, "read"):
        samples = list(read(path))
    try:
        chosen = latest_samples(samples, arguments.model, arguments.since)
    except ConfigError as error:
        print_error(f"{path}: {error.message}")
        return EXIT_FAILED
    rows = list(table(chosen))
    if arguments.output == "json":
        print_json({"model": chosen[0].model, "version": chosen[0].version, "rows": rows})
        return OK
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return OK


def latest_samples(samples: list[Sample], model: str | None, since_wall_s: float | None = None) -> list[Sample]:
    """Returns the samples of the newest one's certificate, because scores of another model are not comparable.

    Raises:
        ConfigError: there are none, none is new enough, or there are several models and none is named.
    """
    names = sorted({sample.model for sample in samples})
    if not names:
        raise ConfigError("No answer was audited or escalated under a certificate yet.")
    if model is None and len(names) > 1:
        raise ConfigError(f"Name a model with --model; there are {', '.join(names)}.")
    of_model = [sample for sample in samples if model in (None, sample.model)]
    if not of_model:
        raise ConfigError(f"No answer of a model '{model}' is known; there are those of {', '.join(names)}.")
    same_certificate = [sample for sample in of_model if sample.key == of_model[-1].key]
    recent = [sample for sample in same_certificate if since_wall_s is None or sample.at >= since_wall_s]
    if not recent:
        raise ConfigError(f"None of its {len(same_certificate)} answers is so new; give --since an earlier time.")
    return recent
