"""Energy per answered request: edge-only, cloud-only, tiered; and how much of that hangs on the stated constants.

Measured: the processor time of either model on one row, and the bytes of a request and its answer as they travel (V2
binary form). Taken from a certificate on half of the labelled rows, and counted on the other half: what stays at the
edge. Everything else is stated: see `STATED`. The device's joules are those of its own cost model,
`firstline_core.routing.tariff`; what a device takes while it idles is there with any of the three, and left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
from figures import Figure
from pools import CACHE, CIFAR10, DATA, DIGITS, IMAGENET, Pair, bundle_of, collect

from firstline.workbench.dataset import open_dataset
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle
from firstline_core.ids import new_request_id
from firstline_core.protocol.oip import encode_request, encode_response
from firstline_core.routing.certification import certify
from firstline_core.routing.confidence import score
from firstline_core.routing.tariff import MIB, LinkTariff, Tariff
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES, InferRequest, InferResponse, Tensor
from hardware.parts import Asked

_ROWS = 100
_DELTA = 0.1
_SEED = 20261121
_FACTOR = 3.0


class Stated(msgspec.Struct, frozen=True):
    """Constants that nobody measured here.

    Attributes:
        joules_per_core_s: of the device, beyond idle.
        device_slowdown: the device's processor time over this machine's.
        joules_per_mib_sent, joules_per_mib_received: of the device's radio.
        overhead_bytes: of HTTP, TLS and TCP around a request and its answer, each way.
        gateway_joules_per_core_s: with the building's share.
        wake_joules: that an escalation takes to wake the radio and to let it fall asleep again; 0 where it is awake.
    """

    joules_per_core_s: float = 1.0
    device_slowdown: float = 4.0
    joules_per_mib_sent: float = 2.4
    joules_per_mib_received: float = 1.1
    overhead_bytes: float = 800.0
    gateway_joules_per_core_s: float = 10.0
    wake_joules: float = 0.0


STATED = {
    # A single-board computer takes about a watt for a busy core. Radios: slopes of the order of those that Huang et
    # al., "A Close Examination of Performance and Power Characteristics of 4G LTE Networks", MobiSys 2012, fitted.
    "wifi": Stated(),
    "lte": Stated(joules_per_mib_sent=3.7, joules_per_mib_received=0.4),
    # The same, where every escalation wakes the radio: some ten seconds at about a watt (their "tail").
    "lte, asleep": Stated(joules_per_mib_sent=3.7, joules_per_mib_received=0.4, wake_joules=10.0),
}


class Measured(msgspec.Struct, frozen=True):
    """What was measured of one pair, on average over rows."""

    edge_core_ms: float
    full_core_ms: float
    sent_bytes: float
    received_bytes: float
    kept: float


class Energy(msgspec.Struct, frozen=True):
    """Millijoules per answered request, of the device and of the gateway."""

    device_mj: float
    gateway_mj: float

    @property
    def total_mj(self) -> float:
        return self.device_mj + self.gateway_mj


class Swing(msgspec.Struct, frozen=True):
    """Tiered over cloud-only, with one constant a third and three times as large."""

    constant: str
    at_third: float
    at_triple: float

    def turns(self, middle: float) -> bool:
        """Whether the other of both takes less at either end than in the middle."""
        return any((end < 1) != (middle < 1) for end in (self.at_third, self.at_triple))


class Record(msgspec.Struct, frozen=True):
    """One pair; what is stated beside it is `STATED`."""

    measured: Measured


_EPSILON = {DIGITS.name: 0.05, CIFAR10.name: 0.05, IMAGENET.name: 0.1}


PAIRS = (DIGITS, CIFAR10, IMAGENET)


def measure(name: str, _asked: Asked, data: Path = DATA) -> Record:
    """One pair; some seconds once its pool is collected."""
    return Record(_measured(next(pair for pair in PAIRS if pair.name == name), data))


def ways(of: Measured, stated: Stated) -> dict[str, Energy]:
    """What a request takes each way."""
    radio = LinkTariff(stated.joules_per_mib_sent / MIB, stated.joules_per_mib_received / MIB)
    run_s = of.edge_core_ms / 1000 * stated.device_slowdown
    tariff = Tariff({"": radio}, joules_per_run=run_s * stated.joules_per_core_s)
    edge_mj = 1000 * tariff.runs(1).joules
    cost = tariff.of_link("").cost(of.sent_bytes + stated.overhead_bytes, of.received_bytes + stated.overhead_bytes)
    link_mj = 1000 * (cost.joules + stated.wake_joules)
    gateway_mj = of.full_core_ms * stated.gateway_joules_per_core_s
    escalated = 1 - of.kept
    return {
        "edge only": Energy(edge_mj, 0.0),
        "cloud only": Energy(link_mj, gateway_mj),
        "tiered": Energy(edge_mj + escalated * link_mj, escalated * gateway_mj),
    }


WHOSE = {"device": "device_mj", "both": "total_mj"}


def swings(of: Measured, stated: Stated, whose: str = "device") -> tuple[Swing, ...]:
    """What each constant can change of the ratio of the device's energy or of both tiers', the most first."""
    found = [
        Swing(name, *(ratio(of, msgspec.structs.replace(stated, **{name: value * factor}), whose) for factor in _AT))
        for name, value in msgspec.structs.asdict(stated).items()
        if value
    ]
    return tuple(sorted(found, key=lambda one: -abs(one.at_triple - one.at_third)))


_AT = (1 / _FACTOR, _FACTOR)


def figures(records: Mapping[str, Record]) -> list[Figure]:
    """Energy per answered request each way, and what decides between them."""
    found = []
    for pair, record in records.items():
        of = record.measured
        for link, stated in STATED.items():
            found += [
                Figure(f"{pair}, {link}: {way}, device", round(energy.device_mj, 4), "mJ per request")
                for way, energy in ways(of, stated).items()
            ]
            found.append(Figure(f"{pair}, {link}: stays at the edge", round(of.kept, 4), "share"))
            for whose in WHOSE:
                middle = ratio(of, stated, whose)
                found.append(Figure(f"{pair}, {link}: tiered beside cloud only, {whose}", round(middle, 4), "times"))
        for whose in WHOSE:
            found += _sensitivity(f"{pair}, wifi, {whose}", of, STATED["wifi"], whose)
    return found


def _sensitivity(label: str, of: Measured, stated: Stated, whose: str) -> Iterator[Figure]:
    """Of tiered beside cloud only, with one constant changed; and how many turn around which of them takes less."""
    found, middle = swings(of, stated, whose), ratio(of, stated, whose)
    for swing in found:
        constant = swing.constant.replace("_", " ")
        yield Figure(f"{label}, {constant}: a third", round(swing.at_third, 4), "times")
        yield Figure(f"{label}, {constant}: three times", round(swing.at_triple, 4), "times")
    turned = sum(swing.turns(middle) for swing in found)
    yield Figure(f"{label}: constants that turn it around within {_FACTOR:g} times", turned, f"of {len(found)}")


def ratio(of: Measured, stated: Stated, whose: str = "device") -> float:
    """Tiered over cloud-only."""
    tiered, cloud = (getattr(ways(of, stated)[way], WHOSE[whose]) for way in ("tiered", "cloud only"))
    return float(tiered / cloud)


def _measured(pair: Pair, data: Path) -> Measured:
    bundle, pool = bundle_of(pair, data), collect(pair, data, CACHE)
    manifest = bundle.manifest
    edge = next(model for model in manifest.edge if model.id == pair.variant)
    if manifest.full is None:
        raise ValueError(f"{manifest.name} has no full model")
    scores = score("margin", pool.edge, 1.0).astype(np.float64)
    order = np.random.default_rng(_SEED).permutation(len(scores))
    half, rest = order[: len(order) // 2], order[len(order) // 2 :]
    promise = certify(scores[half], pool.losses()["disagreement"][half], _EPSILON[pair.name], _DELTA)
    kept = 0.0 if promise.threshold is None else float((scores[rest] >= promise.threshold).mean())
    folder = data / pair.images / "dev" if pair.images else Path(__file__).parents[2] / "models/digits/heldout"
    images = [encoded for encoded, _ in open_dataset(folder, _ROWS).read()]
    traffic = [_traffic(bundle, encoded) for encoded in images]
    return Measured(
        _core_ms(bundle, edge, images),
        _core_ms(bundle, manifest.full, images),
        float(np.mean([sent for sent, _ in traffic])),
        float(np.mean([received for _, received in traffic])),
        kept,
    )


def _core_ms(bundle: Bundle, model: Model, images: list[bytes]) -> float:
    """Processor time of a row, decoding and processing included, on one thread; the better of two passes."""
    loaded = load_model(bundle, model, RuntimeOptions(threads=1))
    passes = []
    for _ in range(2):
        began_s = time.process_time()
        for encoded in images:
            loaded.predict(_tensor(bundle, encoded))
        passes.append(time.process_time() - began_s)
    loaded.close()
    return 1000 * min(passes) / len(images)


def _traffic(bundle: Bundle, encoded: bytes) -> tuple[int, int]:
    """Bytes of a request's body and of its answer's."""
    manifest = bundle.manifest
    request = InferRequest(
        manifest.name,
        (_tensor(bundle, encoded),),
        new_request_id(),
        str(manifest.version),
        binary_output=True,
        full_model_digest=manifest.full_digest,
    )
    output = Tensor(PROBABILITIES, np.zeros((1, len(manifest.labels)), np.float32))
    answer = encode_response(request, InferResponse(manifest.name, str(manifest.version), (output,)))
    return len(encode_request(request).body), len(answer.body)


def _tensor(bundle: Bundle, encoded: bytes) -> Tensor:
    element = np.empty(1, object)
    element[0] = encoded
    return Tensor(bundle.manifest.input.name, element)
