"""`firstline profile predict`: predicts response times of a mixed load on a profiled machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import Report
from firstline.cli.options import GatewayOptions
from firstline.cli.output import percent
from firstline_core.errors import ConfigError, listed
from firstline_core.telemetry.wording import rounded

if TYPE_CHECKING:
    from firstline.cli.profile_source import load_profile
    from firstline_core.profile.predict import Prediction, Stream, highest, predict, utilisation
    from firstline_core.profile.profile import Point, Profile
    from firstline_core.profile.summary import DISTURBED

_FULL = 1.0
_LIGHT, _HEAVY = 0.25, 0.6  # loads below and from which predictions are inexact; profiles are measured at half load
_LEAST_PER_S, _MOST_PER_S = 1e-6, 1e9


def predict_command(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", show_default=False)],
    loads: Annotated[list[str], typer.Argument(metavar="MODEL=PER_SECOND...", show_default=False)],
    *,
    threads: Annotated[int | None, typer.Option(min=0)] = None,
    servers: Annotated[int, typer.Option(min=1, max=1024)] = 1,
    within: Annotated[float | None, typer.Option(metavar="MS")] = None,
    gateway: GatewayOptions,
) -> Report:
    """Predict response times of several models on one machine.

    Queries arrive as a Poisson process and are answered first come, first served. They are simulated from the times in
    the profile; nothing is run.

    Args:
        profile: A file, or BUNDLE/VERSION/MACHINE on the gateway.
        loads: Rates of queries of one row each.
        threads: Threads of a run; they must be measured. Default: the fewest measured.
        servers: Number of queries that run at once.
        within: Also search the highest rates in these proportions whose p99 is within this bound.
    """
    if within is not None and not 0 < within < math.inf:
        raise ConfigError(f"--within {within:g} is not a time above 0; give milliseconds, such as 5.")
    found = load_profile(profile, gateway)
    streams = _streams(found, loads, threads)
    prediction = predict(streams, servers=servers)
    factor = None if within is None else highest(streams, within, servers=servers)
    if any(stream.point.waited_share > DISTURBED for stream in streams):
        typer.echo(_disturbed(streams), err=True)
    if reasons := "; ".join(_inexact(streams, prediction, factor)):
        typer.echo(f"warning: this prediction is inexact: {reasons}.", err=True)
    text = [
        f"{found.bundle} version {found.version} on {found.machine}, {_named(streams)}; servers: {servers}.",
        _sentence(prediction),
    ]
    if factor is not None:
        text.append(_highest_sentence(streams, factor, within))
    return Report(_document(found, streams, prediction, factor), text)


def _streams(profile: Profile, loads: Sequence[str], threads: int | None) -> list[Stream]:
    rates: dict[str, float] = {}
    for load in loads:
        variant, sign, text = load.partition("=")
        try:
            rate_per_s = float(text)
        except ValueError:
            rate_per_s = math.nan
        if not sign or not _LEAST_PER_S <= rate_per_s <= _MOST_PER_S:
            raise ConfigError(
                f"{load[:200]!a} is not a load; write MODEL=PER_SECOND, such as edge=20, with a rate from "
                f"{_LEAST_PER_S:g} to {_MOST_PER_S:g}."
            )
        if variant in rates:
            raise ConfigError(f"{variant} appears twice; add its rates up.")
        rates[variant] = rate_per_s
    return [Stream(_point(profile, variant, threads), rate_per_s) for variant, rate_per_s in rates.items()]


def _point(profile: Profile, variant: str, threads: int | None) -> Point:
    """The point of the latest model of that name, with these threads and the fastest provider."""
    of_one_row = [point for point in profile.points if point.key.of_one_row]
    points = [point for point in of_one_row if point.key.variant == variant]
    if not points:
        choices = listed(variant, dict.fromkeys(point.key.variant for point in of_one_row), "it has:")
        raise ConfigError(f"The profile has no point of {variant!a} with one row a query{choices}")
    points = [point for point in points if point.key.model_digest == points[-1].key.model_digest]
    measured = sorted({point.key.threads for point in points})
    wanted = measured[0] if threads is None else threads
    if wanted not in measured:
        raise ConfigError(
            f"{variant} was not measured with --threads {wanted}, but with {', '.join(map(str, measured))}; "
            f"firstline profile create --threads {wanted} measures it."
        )
    found = min((point for point in points if point.key.threads == wanted), key=lambda point: point.query.p50_ms)
    if not utilisation([Stream(found, 1.0)]):
        raise ConfigError(f"By this profile {variant} takes no time at all; measure it again.")
    return found


def _named(streams: Sequence[Stream]) -> str:
    return ", ".join(
        f"{stream.point.key.variant} {stream.rate_per_s:g}/s (threads {stream.point.key.threads})" for stream in streams
    )


def _sentence(prediction: Prediction) -> str:
    load = f"Load: {percent(round(prediction.utilisation, 3))} of what can be answered"
    if prediction.utilisation >= _FULL:
        return f"{load}, so that the queue grows without end."
    p50, mean, p99 = map(rounded, (prediction.p50_ms, prediction.mean_ms, prediction.p99_ms))
    return f"{load}; p50 {p50} ms, mean {mean} ms, p99 {p99} ms."


def _disturbed(streams: Sequence[Stream]) -> str:
    waited = percent(round(max(stream.point.waited_share for stream in streams), 2))
    return f"warning: other work had the core for up to {waited} of the time while that was measured."


def _inexact(streams: Sequence[Stream], prediction: Prediction, factor: float | None) -> Iterator[str]:
    """Yields the effects that the profile does not contain and that matter at these loads."""
    load, highest_load = prediction.utilisation, (factor or 0.0) * prediction.utilisation
    if len(streams) > 1:
        yield "models slow each other down, which is not predicted"
    if load < _LIGHT:
        yield "queries at such a light load can take longer than predicted"
    if _HEAVY <= load < _FULL:
        yield "waits at such a high load can be longer than predicted"
    if highest_load >= _HEAVY:
        yield "the rates of --within can be too high"


def _highest_sentence(streams: Sequence[Stream], factor: float, within_ms: float | None) -> str:
    if factor == 0:
        return f"No rate keeps p99 within {within_ms:g} ms."
    rates = ", ".join(f"{stream.point.key.variant} {rounded(factor * stream.rate_per_s)}/s" for stream in streams)
    return f"p99 is within {within_ms:g} ms up to {rates}."


def _document(
    profile: Profile, streams: Sequence[Stream], prediction: Prediction, factor: float | None
) -> dict[str, object]:
    full = prediction.utilisation >= _FULL
    times = {name: None if full else getattr(prediction, name) for name in ("p50_ms", "mean_ms", "p99_ms")}
    return {
        "bundle": profile.bundle,
        "version": profile.version,
        "machine": profile.machine,
        "utilisation": prediction.utilisation,
        **times,
        "streams": [
            {
                "key": stream.point.key,
                "rate_per_s": stream.rate_per_s,
                "highest_per_s": None if factor is None else factor * stream.rate_per_s,
            }
            for stream in streams
        ],
    }
