"""What a seed means: five minutes of traffic, and all that goes wrong in them."""

import random
from dataclasses import dataclass

from chaos.simulation.network import Weather
from firstline_core.types import Privacy, Route, Wait
from firstline_core.units import DAY_S

LENGTH_S = 300.0
_TRAFFIC_S = 230.0
_QUIET_FROM_S = 235.0

# What the caller of each request is to be told apart by, and the values that the models answer.
CERTIFIED, UNCERTIFIED, VOID = "certified", "uncertified", "void"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; `values` has the edge model's probability of each row."""

    at_s: float
    model: str
    values: tuple[float, ...]
    wait: Wait
    privacy: Privacy
    route: Route
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Restart:
    """`kill -9` of a tier, which is away for `down_s`."""

    at_s: float
    tier: str
    down_s: float


@dataclass(frozen=True, slots=True)
class Jump:
    """A tier's wall clock is set; nothing tells it."""

    at_s: float
    by_s: float


@dataclass(frozen=True, slots=True)
class Repeat:
    """A request of another device, sent again and again, as where answers are lost; the last time nothing goes wrong.

    Args:
        value: the edge model's probability.
        promised: it keeps a promise; otherwise it audits an edge answer.
        at_s: when it is sent, of which the last is after `Plan.quiet_from_s`.
    """

    value: float
    promised: bool
    at_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Five simulated minutes.

    Args:
        weather: of the link, outages and stalls included.
        jumps: of the device's wall clock.
        gateway_jumps: of the gateway's.
        repeats: what another device asks the gateway, over a link that is always there.
        mutes: (from, to) in seconds: the local broker, where corrections are announced, is away.
        fsync_s: of the device's disk.
        row_ms: of the edge model; above 1 it runs in a thread, and may be hedged.
        service_s: of a batch of the full model.
        failing: share of the full model's batches that fail.
        outbox_items: the outbox's limit.
        max_age_s: of a promise.
        quiet_from_s: from then on nothing goes wrong, so that whatever was promised must be kept.
    """

    seed: int
    asks: tuple[Ask, ...]
    weather: Weather
    restarts: tuple[Restart, ...]
    jumps: tuple[Jump, ...]
    gateway_jumps: tuple[Jump, ...]
    repeats: tuple[Repeat, ...]
    mutes: tuple[tuple[float, float], ...]
    fsync_s: float
    row_ms: float
    service_s: float
    slots: int
    failing: float
    queue_requests: int
    outbox_items: int
    max_age_s: float
    quiet_from_s: float = _QUIET_FROM_S


def draw(seed: int) -> Plan:
    """The seed's plan: the same for the same seed, wherever it is drawn."""
    rng = random.Random(seed)
    outages = sorted(_stretch(rng, 10.0, 200.0, rng.choice((3.0, 20.0, 60.0))) for _ in range(rng.randint(1, 2)))
    stalls = [_stretch(rng, 0.0, 220.0, 5.0) for _ in range(rng.randint(0, 2))]
    weather = Weather(
        name=f"seed {seed}",
        rtt_ms=rng.choice((2.0, 20.0, 80.0, 300.0)),
        mbit_s=rng.choice((0.2, 2.0, 50.0)),
        jitter_ms=rng.choice((0.5, 5.0, 50.0)),
        loss=rng.choice((0.0, 0.0, 0.01, 0.1)),
        stalls=stalls,
        off=outages,
    )
    tiers = rng.choice((("agent",), ("gateway",), ("agent", "gateway"), ("agent", "agent"), ("gateway", "agent")))
    asks = _asks(rng, outages[0])
    restarts = [Restart(_moment(rng, asks), tier, rng.uniform(0.2, 8.0)) for tier in tiers]
    if rng.random() < 0.5:  # in the outage, where most promises wait
        restarts.append(Restart(rng.uniform(*outages[0]), "agent", rng.uniform(0.2, 3.0)))
    jumps = [
        Jump(rng.uniform(5.0, 225.0), rng.choice((-57 * 365 * DAY_S, -3600.0, -1.0, 1.0, 3600.0, 2 * DAY_S)))
        for _ in range(rng.randint(1, 3))
    ]
    if random.Random(f"{seed} leap").random() < 0.1:  # further than answers are kept
        jumps = [Jump(jump.at_s, 10 * DAY_S if jump.by_s > 0 else jump.by_s) for jump in jumps]
    others = random.Random(f"{seed} gateway")
    gateway_jumps = [
        Jump(others.uniform(20.0, 225.0), others.choice((-57 * 365 * DAY_S, -300.0, 300.0, 2 * DAY_S, 30 * DAY_S)))
        for _ in range(others.randint(1, 3))
    ]
    return Plan(
        seed=seed,
        asks=asks,
        weather=weather,
        restarts=tuple(sorted(restarts, key=lambda restart: restart.at_s)),
        jumps=tuple(jumps),
        gateway_jumps=tuple(sorted(gateway_jumps, key=lambda jump: jump.at_s)),
        repeats=tuple(_repeat(others, number) for number in range(6)),
        mutes=tuple(_stretch(rng, 0.0, 220.0, 15.0) for _ in range(rng.randint(0, 2))),
        fsync_s=rng.choice((0.0005, 0.005, 0.04)),
        row_ms=rng.choice((0.1, 0.1, 30.0)),
        service_s=rng.choice((0.002, 0.02, 0.4)),
        slots=rng.randint(1, 2),
        failing=rng.choice((0.0, 0.0, 0.02, 0.3)),
        queue_requests=rng.choice((1, 64)),
        outbox_items=rng.choice((8, 1000)),
        max_age_s=rng.choice((40.0, DAY_S, DAY_S)),
    )


def _repeat(rng: random.Random, number: int) -> Repeat:
    times = (*sorted(rng.uniform(0.0, 230.0) for _ in range(2)), rng.uniform(_QUIET_FROM_S + 1.0, LENGTH_S - 30.0))
    return Repeat(rng.randint(800_001, 999_999) / 1e6, number % 2 == 0, times)


def _stretch(rng: random.Random, earliest_s: float, latest_s: float, mean_s: float) -> tuple[float, float]:
    begins_s = rng.uniform(earliest_s, latest_s)
    return begins_s, min(latest_s + 10.0, begins_s + 0.5 + rng.expovariate(1 / mean_s))


def _moment(rng: random.Random, asks: tuple[Ask, ...]) -> float:
    """Anywhere, or in the middle of a request, down to the moment between a commit and its acknowledgement."""
    if rng.random() < 0.3:
        return rng.uniform(15.0, 220.0)
    asked_s = rng.choice([ask.at_s for ask in asks if 10.0 < ask.at_s < 220.0])
    return asked_s + rng.choice((0.0006, 0.005, 0.04, 0.3)) * rng.uniform(0.5, 1.5)


def _asks(rng: random.Random, outage: tuple[float, float]) -> tuple[Ask, ...]:
    """A request every three seconds, and a burst in the outage and another anywhere."""
    at_s = [rng.uniform(0.0, _TRAFFIC_S) for _ in range(int(_TRAFFIC_S / 3))]
    for begins_s in (rng.uniform(*outage), rng.uniform(0.0, _TRAFFIC_S)):
        at_s += [begins_s + rng.uniform(0.0, 0.3) for _ in range(rng.randint(5, 15))]
    earlier: list[float] = []
    return tuple(_ask(rng, when_s, earlier) for when_s in sorted(at_s))


def _ask(rng: random.Random, at_s: float, earlier: list[float]) -> Ask:
    private = rng.random() < 0.1
    values = tuple(_value(rng, [] if private else earlier) for _ in range(rng.choice((1, 1, 1, 1, 2, 4))))
    route = rng.choices((Route.AUTO, Route.CLOUD, Route.EDGE), (8, 1, 1))[0]
    return Ask(
        at_s=at_s,
        model=rng.choice((CERTIFIED, CERTIFIED, UNCERTIFIED, VOID)),
        values=values,
        wait=rng.choice((Wait.FINAL, Wait.FINAL, Wait.FIRST)),
        privacy=Privacy.LOCAL_ONLY if private else Privacy.ANY,
        route=Route.AUTO if private and route is Route.CLOUD else route,
        timeout_s=rng.choice((None, 0.05, 0.5, 5.0)),
    )


def _value(rng: random.Random, earlier: list[float]) -> float:
    """Of ten, one was asked before: caches and callers who ask the same at once have something to do."""
    if earlier and rng.random() < 0.1:
        return rng.choice(earlier)
    value = rng.randint(500_001, 999_999) / 1e6
    earlier.append(value)
    return value
