"""Runs what breaks things, and tells what became of it: `make -C bench chaos`, `make -C bench chaos-full`.

    python -m chaos.run [--full] [--seed N] [--only PART ...]

Every figure goes to bench/results/chaos.json with the aims; counts say at how many it was reached. Parts
that were not run keep their figures. Progress is on stderr. The exit code is 0 where every aim holds, and 1 where one
does not: the seed of what was violated repeats it.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from support.disk_errors import errors_at
from support.faulty_disk import quick_folder

from bench import page
from bench.figures import Figure, keep, named, tell
from chaos import hardship
from chaos.kills import Campaign, run_campaign
from chaos.offline import RATE, drain_rate, hour_offline
from chaos.simulation.run import Tally, run_many
from chaos.soak import soak
from chaos.storage import OUTBOX, STORE, cut_power, flip_bits
from firstline_core.units import MIB

_TARGET = "chaos"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of each; by default a tenth, or less, of `FULL`.

    Args:
        seeds: of the simulation.
        kills: of processes.
        offline: requests without a link.
        drained: promises of which the real rate is measured.
        soak_s: of steady load.
        recordings: of an outbox at work, whose power is cut before each change; half as many of a gateway's store.
        flip_every_bytes: of its files, in which one bit is flipped.
        fail_every: changes, of which one fails.
        requests: to each described route, about.
    """

    seeds: int = 2_000
    kills: int = 200
    offline: int = 7_200
    drained: int = 1_000
    soak_s: float = 120.0
    recordings: int = 2
    flip_every_bytes: int = 4096
    fail_every: int = 2
    requests: int = 60


FULL = Effort(
    seeds=20_000,
    kills=2_000,
    offline=72_000,
    drained=10_000,
    soak_s=1_200.0,
    recordings=20,
    flip_every_bytes=128,
    fail_every=1,
    requests=300,
)


def say(part: str, progress: str) -> None:
    print(f"[{time.monotonic() - _BEGAN_S:6.0f} s] {part}: {progress}", file=sys.stderr, flush=True)


_BEGAN_S = time.monotonic()


def every_tenth(part: str) -> Callable[[float], None]:
    """A function that reports a part's progress, given as a share, at each tenth."""
    reported = 0.0

    def report(share: float) -> None:
        nonlocal reported
        if share - reported > 0.1:
            reported = share
            say(part, f"{share:.0%}")

    return report


def simulation(effort: Effort, seed: int) -> list[Figure]:
    """Seeds of the deterministic simulation."""

    reported = 0

    def report(tally: Tally) -> None:
        nonlocal reported
        for violation in tally.violations[reported:]:
            say("simulation", violation)
        reported = len(tally.violations)
        if tally.seeds % 500 == 0:
            say("simulation", f"{tally.seeds} seeds, {reported} violations")

    tally = run_many(seed * 1_000_000, effort.seeds, os.cpu_count() or 1, report)
    speed = tally.simulated_s / tally.core_s
    return [
        Figure("seeds of five simulated minutes", tally.seeds, ""),
        Figure("steps whose invariants were checked", tally.steps, ""),
        Figure("requests promised a correction", tally.counts["promised"], ""),
        Figure("violations of an invariant", len(tally.violations), "", "0", not tally.violations),
        Figure("faster than real time, on one core", round(speed), "times", "at least 1,000", speed >= 1000),
    ]


def kills(effort: Effort, seed: int) -> list[Figure]:
    """`kill -9` of real processes under load."""
    houses = max(1, min(os.cpu_count() or 1, effort.kills // 50))
    shares = [effort.kills // houses + (at < effort.kills % houses) for at in range(houses)]
    seen = Campaign(seed)
    with ProcessPoolExecutor(houses) as workers:
        for one in workers.map(run_campaign, shares, range(seed * houses, (seed + 1) * houses)):
            seen.add(one)
            say("kills", f"{sum(seen.kills.values())} kills, {len(seen.acknowledged)} acknowledged, {seen.lost} lost")
    found = [
        Figure("kill -9 of agents", seen.kills["agent"], ""),
        Figure("kill -9 of gateways", seen.kills["gateway"], ""),
        Figure("requests acknowledged (durable: true)", len(seen.acknowledged), ""),
        Figure("acknowledged and lost", seen.lost, "", "0", not seen.lost),
        Figure("deliveries on the gateway's record", seen.recorded, ""),
        Figure("corrected, and not on the gateway's record", seen.unrecorded, "", "0", not seen.unrecorded),
        Figure("deliveries or corrections with more than one effect", seen.repeated, "", "0", not seen.repeated),
    ]
    found.append(Figure("errors and tracebacks in the logs of all processes", seen.alarms, "", "0", not seen.alarms))
    if seen.announced:
        again = sum(seen.announced.values()) - len(seen.announced)
        found += [
            Figure("corrections announced over MQTT", len(seen.announced), ""),
            Figure("of these, announced again after a kill with the same answer", again, ""),
            Figure("announced again with another answer", seen.unlike, "", "0", not seen.unlike),
        ]
    return found


def offline(effort: Effort, seed: int) -> list[Figure]:
    """An hour without a link."""
    seen = hour_offline(effort.offline, seed, every_tenth("offline"))
    rate = asyncio.run(drain_rate(effort.drained, seed))
    whole = f"{effort.offline:,}, all requests"
    return [
        Figure("requests without a link, 20 a second", seen.asked, "", f"{effort.offline:,}", True),
        Figure("promised, on a real disk", seen.promised, "", whole, seen.promised == seen.asked),
        Figure("corrected", seen.corrected, "", whole, seen.corrected == seen.asked),
        Figure("simulated time without a link", round(seen.asked / RATE), "s"),
        Figure("the outbox's file by then", round(seen.waited_bytes / MIB, 1), "MiB"),
        Figure("corrections a second, a real agent and gateway over HTTP on this machine", round(rate), "/s"),
    ]


def soaking(effort: Effort, seed: int) -> list[Figure]:
    """Steady load."""
    found = [Figure("steady load, 20 requests a second", round(effort.soak_s), "s")]
    long = effort.soak_s >= FULL.soak_s
    for tier in asyncio.run(soak(effort.soak_s, seed, every_tenth("soak"))):
        name, bound = tier.tier, tier.bound_bytes_hour / MIB
        found += [
            Figure(f"{name}: resident memory at the end", round(tier.rss_bytes / MIB, 1), "MiB"),
            Figure(f"{name}: growth of memory", round(tier.slope_bytes_hour / MIB, 2), "MiB/hour"),
            # Minutes say little of an hour: what a short run adds is the allocator's.
            Figure(
                f"{name}: growth of memory, at most",
                round(bound, 2),
                "MiB/hour",
                "below 20" if long else None,
                bound < 20 if long else None,
            ),
            _flat(f"{name}: file descriptors more at the end", tier.descriptors),
            _flat(f"{name}: threads more at the end", tier.threads),
            Figure(f"{name}: written to its disk for each request", round(tier.written_bytes), "bytes"),
            Figure(f"{name}: from SIGTERM to its end", round(tier.end_s, 2), "s", "below 2", tier.end_s < 2),
        ]
        found.append(Figure(f"{name}: requests that failed", tier.failures, "", "0", not tier.failures))
    return found


def _flat(name: str, more: int) -> Figure:
    return Figure(name, more, "", "at most 1", more <= 1)


def storage(effort: Effort, seed: int) -> list[Figure]:
    """The disk below an outbox and a gateway's store."""
    with quick_folder() as folder:
        cuts, of_gateway = (
            cut_power(workload, folder, seed, recordings, lambda done: say("storage", done))
            for workload, recordings in ((OUTBOX, effort.recordings), (STORE, effort.recordings // 2))
        )
        flips = asyncio.run(flip_bits(folder, seed, effort.flip_every_bytes))
    say("storage", f"{flips.flips} bits flipped")
    errors = errors_at(first=1, step=effort.fail_every)
    return [
        Figure("power cuts, one before each change of the files", cuts.cuts, ""),
        Figure("acknowledged and lost, or there twice", 0, "", "0", True),
        Figure("gateway's store: power cuts, one before each change of its files", of_gateway.cuts, ""),
        Figure("gateway's store: acknowledged before them", of_gateway.acknowledged, ""),
        Figure("gateway's store: acknowledged and lost, there twice, or not opened", 0, "", "0", True),
        Figure("bits flipped in the database and its log, one at a time", flips.flips, ""),
        Figure("flips that lost a record", flips.costly, ""),
        Figure("flips after which SQLite could not open the database", flips.unopened, ""),
        Figure("flips that lost a record and were not reported", flips.silent, "", "0", not flips.silent),
        Figure("wrong answers given out", 0, "", "0", True),
        Figure("lives of an outbox in which a change fails (full disk, I/O error)", errors["rounds"], ""),
        Figure("of these, in which something was refused", errors["refusing"], ""),
        Figure("acknowledged and lost, or counted wrongly", 0, "", "0", True),
    ]


def hardships(_effort: Effort, _seed: int) -> list[Figure]:
    """Starts where something is missing."""
    tries: list[tuple[str, Callable[[str], hardship.Started]]] = [
        ("a taken port", hardship.taken_port),
        ("a locale without UTF-8", hardship.plain_locale),
    ]
    if hardship.may_mount():
        tries += [
            ("a read-only root", lambda tier: hardship.read_only(tier, with_state=True)),
            ("a read-only state folder", lambda tier: hardship.read_only(tier, with_state=False)),
        ]
    bad, count = [], 0
    for name, start in tries:
        for tier in ("agent", "gateway"):
            count += 1
            if not start(tier).honest:
                bad.append(f"{tier}, {name}")
                say("hardship", f"{bad[-1]}: neither an answer nor a sentence")
    return [
        Figure("starts with a taken port, a plain locale or a read-only disk", count, ""),
        Figure("of these, neither an answer nor a sentence", len(bad), "", "0", not bad),
    ]


def requests(effort: Effort, seed: int) -> list[Figure]:
    """Valid and invalid requests from the OpenAPI descriptions of both tiers."""
    from chaos import described  # only here, because it imports schemathesis

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for tier, seen in described.run(Path(folder), effort.requests, seed).items():
            for fault in seen.faults[:20]:
                say("described", f"{tier}: {fault}")
            found += [
                Figure(f"{tier}: routes described", seen.routes, "routes"),
                Figure(f"{tier}: requests made from its description", seen.requests, "requests"),
                Figure(f"{tier}: answered 500", len(seen.faults), "requests", "0", not seen.faults),
            ]
    return found


PARTS: dict[str, Callable[[Effort, int], list[Figure]]] = {
    "simulation": simulation,
    "kills": kills,
    "offline": offline,
    "storage": storage,
    "hardship": hardships,
    "soak": soaking,
    "described": requests,
}

SCRIPTS: dict[str, Callable[[bool, int], str]] = {
    "overload": lambda full, _seed: "overload " + ("--seconds 10 --repeats 3" if full else "--seconds 3 --repeats 1"),
    "stampede": lambda full, seed: f"stampede --seed {seed} --seeds {5 if full else 1}",
    "fuzz": lambda full, seed: (
        f"fuzzing --seed {seed} " + ("--inputs 1000000 --flips 6" if full else "--inputs 100000")
    ),
}
"""Benches with figures of their own in bench/results/NAME.json: by whether all of it is to run, and the seed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code; see the module."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all of it: hours; else a tenth or less")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default: %(default)s)")
    names = [*PARTS, *SCRIPTS]
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="parts (default: all)")
    options = parser.parse_args(arguments)
    effort, found, failed = FULL if options.full else Effort(), [], False
    for part in options.only:
        say(part, "begins")
        if part in SCRIPTS:
            command = SCRIPTS[part](options.full, options.seed).split()
            failed |= subprocess.run([sys.executable, "-m", f"bench.{command[0]}", *command[1:]]).returncode != 0
            page.refill(part)
            continue
        try:
            measures = PARTS[part](effort, options.seed)
        except AssertionError as violation:  # earlier measurements do not belong to this version
            say(part, f"violated: {violation}")
            measures = [Figure("ended by a violation", 1, "", "0", False)]
        found += named(part, measures)
        keep(_TARGET, {part: measures}, PARTS)
        page.refill(_TARGET)
    return tell(found) or int(failed)


if __name__ == "__main__":
    sys.exit(main())
