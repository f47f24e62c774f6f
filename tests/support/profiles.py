"""Profiles with stated points."""

from firstline_core.hardware.readings import Absent
from firstline_core.profile.profile import Point, PointKey, Profile, QueryBytes, distribution


def point(query_ms: float, *, variant: str = "edge", digest: str = "a" * 64, threads: int = 1) -> Point:
    """A point whose queries all take the same time."""
    always = distribution([query_ms / 1000])
    absent = Absent("Nobody measured it.")
    return Point(
        key=PointKey(variant, digest, "CPUExecutionProvider", threads, 1),
        ran_on="CPUExecutionProvider",
        query=always,
        rested=always,
        prepare_ms=query_ms,
        run_ms=query_ms,
        offline_per_s=1000 / query_ms,
        load_ms=1.0,
        first_ms=query_ms,
        moved=QueryBytes(1, 1, 1),
        peak_memory_bytes=absent,
        processor_ms=query_ms,
        energy_mj=absent,
    )


def profile(*query_ms: float, bundle: str = "digits", version: int = 1, machine: str = "bench") -> Profile:
    """A profile with a point for each number of threads, from 1 on."""
    points = tuple(point(each, threads=threads) for threads, each in enumerate(query_ms, 1))
    return Profile(bundle, version, machine, "f" * 16, points, made_s=1.7e9, agent_version="0.1.0")
