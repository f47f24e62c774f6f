"""What a request costs the gateway with 1 to 256 in flight and with 1 to 50 models, in its processor time.

Flat is told in two ways. *Spread* is the dearest over the cheapest. *Growth* is how much dearer a request ever becomes
than it was with fewer in flight (or models): batches, and reading many requests at one look, make the later ones
cheaper, which is no harm, and shows in the spread alone. Fifty models do not fit into a core's cache, so that each of
them runs longer, and what runs after it: without a server too, and on raw ASGI. So growth with them is told of what the
gateway takes beyond raw ASGI over as many models, which is asked in turn with it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from figures import Figure

from serving import alone, ours
from serving.asking import Ask, expected, measured, v2
from serving.bodies import Row
from serving.effort import Effort
from serving.figuring import at_most, told
from serving.models import S, write_onnx
from serving.processes import Server, cores
from serving.samples import Sample, median, of_load
from serving.wrk import Load

PART = "flat"
GATEWAY, RAW, SESSION = "gateway", "raw ASGI", "session.run"
IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MODELS = (1, 2, 5, 10, 20, 50)
IN_FLIGHT_OF_MODELS = (1, 32)
_AIM = 1.1
_MOST_ROUNDS, _MOST_S, _ALONE_S = 2, 2, 0.5
_TURNS = 3  # of a number of models; with one, what else the machine did then would look like growth
_QUICK_IN_FLIGHT, _QUICK_MODELS = (1, 256), (1, 5)


def measure(effort: Effort) -> list[Sample]:
    """Every round of it, at most two: it is long."""
    samples = []
    for number in range(min(effort.rounds, _MOST_ROUNDS)):
        effort.tell(f"in flight, round {number + 1}")
        samples += _in_flight(effort, number)
        effort.tell(f"models, round {number + 1}")
        samples += _models(effort, number)
    return samples


def _in_flight(effort: Effort, number: int) -> list[Sample]:
    server_core, _, _ = cores()
    samples = []
    steps = _QUICK_IN_FLIGHT if effort.quick else IN_FLIGHT
    with tempfile.TemporaryDirectory(prefix="firstline-bench-") as name, contextlib.ExitStack() as running:
        folder = Path(name)
        file, ask = write_onnx(S, folder / "s.onnx"), v2("binary", S, ["s"])
        right = expected(file, S)
        headers = ours.gateway_folder(folder / "gateway", {"s": S})
        servers = {
            GATEWAY: running.enter_context(ours.gateway(folder / "gateway", headers, ask, right, server_core)),
            RAW: running.enter_context(ours.raw_asgi(folder, file, ask, right, server_core)),
        }
        # Up in one round and down in the next: what changes with time would look like a slope.
        for in_flight in steps if number % 2 == 0 else reversed(steps):
            for who, server in servers.items():
                load = _measured(server, ask, right, in_flight, effort)
                samples.append(of_load(PART, number, who, in_flight_name(in_flight), load))
    return samples


def _models(effort: Effort, number: int) -> list[Sample]:
    server_core, _, _ = cores()
    samples = []
    steps = _QUICK_MODELS if effort.quick else MODELS
    for count in steps if number % 2 == 0 else reversed(steps):
        with tempfile.TemporaryDirectory(prefix="firstline-bench-") as name:
            folder, models = Path(name), ours.copies(count)
            file = write_onnx(S, folder / "s.onnx")
            right = expected(file, S)
            found = alone.measured(file, S, copies=count, seconds=_ALONE_S, on=server_core)
            samples.append(Sample(PART, number, SESSION, models_name(count, 1), found))
            headers = ours.gateway_folder(folder, models)
            ask = v2("binary", S, list(models))
            with (
                ours.gateway(folder, headers, ask, right, server_core) as gateway,
                ours.raw_asgi(folder, file, ask, right, server_core, copies=count) as raw,
            ):
                for in_flight in IN_FLIGHT_OF_MODELS * (1 if effort.quick else _TURNS):
                    for who, server in ((GATEWAY, gateway), (RAW, raw)):
                        load = _measured(server, ask, right, in_flight, effort)
                        samples.append(of_load(PART, number, who, models_name(count, in_flight), load))
    return samples


def _measured(server: Server, ask: Ask, right: Row, in_flight: int, effort: Effort) -> Load:
    _, client_core, _ = cores()
    seconds, warm_up_s = min(effort.seconds, _MOST_S), effort.warm_up_s if in_flight == 1 else 0
    return measured(server, ask, right, in_flight=in_flight, seconds=seconds, on=client_core, warm_up_s=warm_up_s)


def in_flight_name(in_flight: int) -> str:
    return f"{in_flight} in flight"


def models_name(count: int, in_flight: int) -> str:
    return f"{count} model{'s' * (count > 1)}, {in_flight} in flight"


def costs(samples: Sequence[Sample], who: str, names: Sequence[str]) -> list[float]:
    """Processor time of a request (us), medians over the rounds, of those steps that were measured."""
    found = (median(samples, who, name, "cpu_us") for name in names)
    return [cost for cost in found if cost]


def beyond(samples: Sequence[Sample], names: Sequence[str]) -> list[float]:
    """What the gateway takes for a request (us) beyond raw ASGI over as many models."""
    pairs = ((median(samples, GATEWAY, n, "cpu_us"), median(samples, RAW, n, "cpu_us")) for n in names)
    return [cost - raw for cost, raw in pairs if cost is not None and raw is not None]


def spread(found: Sequence[float]) -> float | None:
    """The dearest over the cheapest."""
    return max(found) / min(found) if found else None


def growth(found: Sequence[float]) -> float | None:
    """The most that a step costs over the cheapest one before it; 1 where costs only fall."""
    if not found:
        return None
    return max((cost / min(found[: at + 1]) for at, cost in enumerate(found)), default=1.0)


def figures(samples: Sequence[Sample]) -> list[Figure]:
    """Growth is what is aimed for; the spread, and what raw ASGI does, are told beside it."""
    in_flight = [in_flight_name(n) for n in IN_FLIGHT]
    rows = []
    ours_found, raw_found = costs(samples, GATEWAY, in_flight), costs(samples, RAW, in_flight)
    what = "processor time of a request, S, 1 to 256 in flight"
    rows += [
        at_most(f"{what}: growth", growth(ours_found), _AIM),
        told(f"{what}: spread", spread(ours_found)),
        told(f"{what}: growth on raw ASGI", growth(raw_found)),
        told(f"{what}: spread on raw ASGI", spread(raw_found)),
    ]
    what = "processor time of a request, 1 to 50 models of S asked in turn, 1 in flight"
    names = [models_name(n, 1) for n in MODELS]
    rows.append(at_most(f"{what}, beyond raw ASGI's: growth", growth(beyond(samples, names)), _AIM))
    rows.append(told(f"{what}, beyond raw ASGI's: spread", spread(beyond(samples, names))))
    # With more in flight many models have smaller batches each: what one batch saved is paid again.
    for at_once in IN_FLIGHT_OF_MODELS:
        names = [models_name(n, at_once) for n in MODELS]
        found, raw_found = costs(samples, GATEWAY, names), costs(samples, RAW, names)
        what = f"processor time of a request, 1 to 50 models of S asked in turn, {at_once} in flight"
        rows += [told(f"{what}: growth", growth(found)), told(f"{what}: spread", spread(found))]
        rows += [
            told(f"{what}: growth on raw ASGI", growth(raw_found)),
            told(f"{what}: spread on raw ASGI", spread(raw_found)),
        ]
    for name in in_flight:
        rows += [
            told(f"gateway, S binary, {name}: processor time", median(samples, GATEWAY, name, "cpu_us"), "us", 1),
            told(f"raw ASGI, S binary, {name}: processor time", median(samples, RAW, name, "cpu_us"), "us", 1),
            told(f"gateway, S binary, {name}", median(samples, GATEWAY, name, "rate_per_s"), "/s", 0),
        ]
    for at_once in IN_FLIGHT_OF_MODELS:
        for count in MODELS:
            name = models_name(count, at_once)
            rows.append(told(f"gateway, {name}: processor time", median(samples, GATEWAY, name, "cpu_us"), "us", 1))
            rows.append(told(f"raw ASGI, {name}: processor time", median(samples, RAW, name, "cpu_us"), "us", 1))
            rows.append(told(f"session.run, {name}", median(samples, SESSION, name, "p50_us"), "us", 1))
    return [row for row in rows if row.value is not None or row.aim]
