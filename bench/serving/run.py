"""Measures both tiers next to raw ASGI, `make -C bench serving`; writes figures, raw numbers and the machine."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from bench import figures as book
from bench.figures import Figure
from bench.serving import machine, rest, tables, wrk
from bench.serving.samples import QUICK, Effort, Sample

TARGET = "serving"


class Found(NamedTuple):
    """What a part measured: figures, and the samples they were made of where the part has rounds."""

    figures: list[Figure]
    samples: list[Sample]


def _rest(effort: Effort) -> Found:
    samples = rest.measure(effort)
    return Found(rest.figures(samples), samples)


def _device(effort: Effort) -> Found:
    from bench import agent

    effort.progress("the agent in process")
    requests, repeats = (200, 1) if effort.quick else (2000, effort.rounds)
    return Found(asyncio.run(agent.measured_figures(requests, repeats)), [])


PARTS: dict[str, Callable[[Effort], Found]] = {"rest": _rest, "device": _device}


def read_command(
    module: str, description: str | None, names: Iterable[str], rounds: int, arguments: Sequence[str] | None
) -> tuple[list[str], Effort]:
    """Reads a command line; ends the program if wrk, the client, is not installed.

    Args:
        module: of the command.
        description: of the command.
        names: what --only may choose.
        rounds: the default.
        arguments: None for those of this process.

    Returns:
        What is measured, and how much.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--only", choices=tuple(names), nargs="+", default=list(names), help="(default: all)")
    parser.add_argument("--rounds", type=int, default=rounds, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=Effort.seconds, help="of each load (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="everything once and briefly: figures mean nothing")
    options = parser.parse_args(arguments)
    if not wrk.available():
        parser.exit(1, "wrk is not installed: `make wrk`, or your system's package\n")
    wrk.raise_descriptors()
    return options.only, QUICK if options.quick else Effort(options.rounds, options.seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 whatever the figures are: times of one machine are no gate."""
    only, effort = read_command("bench.serving.run", __doc__, PARTS, Effort.rounds, arguments)
    described = machine.described()
    found = {part: PARTS[part](effort) for part in only}
    effort.progress("done")
    keep(TARGET, found, described, effort)
    if not effort.quick:
        tables.refill()
    book.tell([figure for part, one in found.items() for figure in book.named(part, one.figures)])
    return 0


def keep(target: str, found: dict[str, Found], described: dict[str, Any], effort: Effort) -> None:
    """Writes what was measured; parts that were not run stay as they were."""
    before = book.stored(target)
    samples = [one for one in before.get("samples", ()) if one["part"] not in found]
    samples += [one._asdict() for part in found.values() for one in part.samples]
    machine_record = described | {"rounds": effort.rounds, "seconds": effort.seconds}
    machines = before.get("machine", {}) | dict.fromkeys(found, machine_record)
    figures = {part: one.figures for part, one in found.items()}
    book.keep(target, figures, PARTS, {"machine": machines, "samples": samples})


if __name__ == "__main__":
    sys.exit(main())
