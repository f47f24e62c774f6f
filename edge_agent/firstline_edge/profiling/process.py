"""The process that measures a bundle beside the requests: it gives way to everybody, and ends first where memory ends.

python -m firstline_edge.profiling.process      reads an `Order` as JSON on stdin, writes `Told` on stdout, a line each

Before each point it says what that needs, and reads a line: "" to measure it, else why it is left out, as JSON.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.profile.measure import Wanted, keys, measure_profile
from firstline_core.profile.need import Need
from firstline_core.runtime.priority import use_lowest_priority

LIMIT_BYTES = 64 * 1024


class Order(Struct, frozen=True):
    """What to measure.

    Attributes:
        bundle: its folder.
        path: of the profile.
        machine: its name.
        variants: ids of models; none for all whose files are here.
    """

    bundle: str
    path: str
    machine: str
    providers: tuple[str, ...]
    threads: tuple[int, ...]
    batches: tuple[int, ...]
    total_s: float
    anew: bool
    joules_per_core_s: float
    root: str
    variants: tuple[str, ...] = ()
    throttled_share: float = 0.0


class Told(Struct, frozen=True):
    """How far it is.

    Attributes:
        done: points, of `total`.
        needs: what the next one needs: an answer is waited for; None where it tells how far it is, and no more.
        measured: points that the profile has in the end; None before.
        refused: why one of them could not be measured, likewise.
        problem: why nothing more comes, in a sentence; "" while all goes well.
        waits: why the next point is not measured yet, in a sentence; the agent adds it.
    """

    done: int = 0
    total: int = 0
    measured: int | None = None
    refused: str = ""
    problem: str = ""
    needs: Need | None = None
    waits: str = ""


def main() -> int:
    """Measures; ended by SIGTERM it takes its own process with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    use_lowest_priority()
    _end_first()
    order = msgspec.json.decode(sys.stdin.buffer.readline(LIMIT_BYTES), type=Order)
    at = Told()

    def progress(done: int, total: int, _: str) -> None:
        nonlocal at
        at = Told(done, total)
        _tell(at)

    def may(needed: Need) -> str:
        _tell(replace(at, needs=needed))
        if not (line := sys.stdin.buffer.readline(LIMIT_BYTES)):
            sys.exit(1)  # nobody is there who could say
        return msgspec.json.decode(line, type=str)

    try:
        bundle = open_bundle(Path(order.bundle))
        wanted = Wanted(
            threads=order.threads,
            batches=order.batches,
            providers=order.providers,
            variants=_here(bundle, order.variants),
            total_s=order.total_s,
            anew=order.anew,
            joules_per_core_s=order.joules_per_core_s,
            throttled_share=order.throttled_share,
            root=Path(order.root),
        )
        found = measure_profile(
            bundle,
            Path(order.path),
            wanted,
            machine=order.machine,
            progress=progress,
            may=may,
        )
    except FirstlineError as error:
        _tell(Told(problem=error.message))
        return 1
    cores = found.hardware.processor.usable_cores if found.hardware is not None else 1
    asked_for = set(keys(bundle.manifest, wanted, cores)) - set(found.outdated)
    there = sum(point.key in asked_for for point in found.points)
    why = next((one.reason for one in reversed(found.refused) if one.key in asked_for), "")
    _tell(Told(there, there, measured=there, refused=why))
    return 0


def _here(bundle: Bundle, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Of the models that are wanted those whose files are here: often the full one's are not.

    Raises:
        ConfigError: one that is named is not.
    """
    there = tuple(model.id for model in bundle.manifest.models if bundle.has(model))
    if absent := [id_ for id_ in wanted if id_ not in there]:
        raise ConfigError(
            f"This device has no model '{absent[0]}' of {bundle.manifest.name}; it has: {', '.join(there)}."
        )
    return wanted or there


def _tell(said: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()  # where the agent is gone, this ends the process


def _end_first() -> None:
    with suppress(OSError):  # no Linux, or a container that hides it
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main())
