"""From what one thing costs to what a fleet needs: plain arithmetic, with every assumption named."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

HOURS_A_MONTH = 730.0
_DAYS_A_MONTH = HOURS_A_MONTH / 24
_MIB, _GB = 1 << 20, 1e9
_KEEP_ALIVE_S = 60.0  # a device's, by default

DEVICES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What nobody measured: how devices are used, how full machines are run, and what they cost. Change them.

    Attributes:
        requests_hour: of applications to one device, on average.
        escalated: of these, the share that goes to the gateway while somebody waits.
        promised: of these, the share whose answer comes later, as a delivery.
        audited: of these, the share that is answered by the device and audited.
        peak: requests in the busiest hour, to the average.
        input_bytes: of an escalation on the line, towards the gateway.
        answer_bytes: of its answer, headers included.
        full: how full processors, connections and disks are run at the peak.
        replica_cores: of one gateway; at least two run wherever more than one machine does.
        connections_broker: the most devices that one broker is given.
        deliveries_days: how long the store remembers a delivery (`store.deliveries_age_s`).
        renewal_days: how often a device opens its connections anew, restarts of brokers included.
        core_hour: price of a processor core for an hour.
        gib_hour: price of a GiB of memory for an hour.
        gb_month: price of a GB of disk for a month.
        gb_out: price of a GB that leaves the data centre.
    """

    requests_hour: float = 60.0
    escalated: float = 0.10
    promised: float = 0.01
    audited: float = 0.01
    peak: float = 3.0
    input_bytes: float = 20_000.0
    answer_bytes: float = 1_000.0
    full: float = 0.5
    replica_cores: int = 4
    connections_broker: int = 100_000
    deliveries_days: float = 7.0
    renewal_days: float = 1.0
    core_hour: float = 0.04
    gib_hour: float = 0.005
    gb_month: float = 0.10
    gb_out: float = 0.09


class Units(NamedTuple):
    """What one thing costs, as it was measured; processor times are of one core."""

    model_ms: float  # the full model, one input: M of the serving benchmark, 224 by 224
    gateway_http_us: float  # of the gateway, beside the model, for a request
    gateway_mqtt_us: float
    gateway_delivery_us: float  # over HTTP, committed on PostgreSQL
    broker_request_us: float  # of Mosquitto, for a request and its answer
    broker_ping_us: float  # of Mosquitto, for a keep-alive
    broker_connect_us: float  # of Mosquitto, for a device's connection with TLS
    broker_connection_bytes: float  # of Mosquitto, idle, subscribed
    handshake_us: float  # of the gateway, a new HTTPS connection
    postgres_delivery_us: float
    postgres_commits: float  # a second, one after the other, each flushed to this disk
    deliveries_commit: float  # that share a commit, at so many at once
    delivery_bytes: float  # of the store's disk
    gateway_bytes: float  # of memory, a replica with a small model
    idle_day_bytes: float  # on the line, for a device that nobody asks, over MQTT


class Step(NamedTuple):
    """A fleet of so many devices, at its peak.

    Attributes:
        requests: of applications, all devices, a second.
        escalations: that reach gateways, audits included, a second.
        deliveries: a second.
        gateway_cores: beside the model.
        model_cores: for the full model.
        gateways: replicas.
        broker_cores: of all brokers.
        brokers: processes of Mosquitto, or nodes of a cluster of them.
        broker_bytes: of memory for connections.
        commits: of PostgreSQL, a second.
        store_bytes: of disk for deliveries.
        line_gb: that devices send in a month, with headers of what is idle.
        out_gb: that they are sent.
        first: what is nearest to the limit of one instance of it, and how near (1 is full).
        second: what is next.
        monthly: what it costs.
    """

    devices: int
    requests: float
    escalations: float
    deliveries: float
    gateway_cores: float
    model_cores: float
    gateways: int
    broker_cores: float
    brokers: int
    broker_bytes: float
    commits: float
    store_bytes: float
    line_gb: float
    out_gb: float
    first: str
    first_share: float
    second: str
    second_share: float
    monthly: float

    @property
    def monthly_device(self) -> float:
        """What one device costs of it."""
        return self.monthly / self.devices


def step(devices: int, units: Units, given: Assumptions) -> Step:
    """What a fleet of so many devices needs, all of them over MQTT."""
    average = devices * given.requests_hour / 3600
    peak = average * given.peak
    escalations = peak * (given.escalated + given.audited)
    deliveries = peak * given.promised
    arriving = escalations + deliveries
    connects = devices / (given.renewal_days * 86_400)
    commits = deliveries / max(1.0, min(units.deliveries_commit, deliveries / units.postgres_commits))
    gateway_cores = (
        escalations * units.gateway_mqtt_us + deliveries * (units.gateway_mqtt_us + _promise_us(units))
    ) / 1e6
    model_cores = arriving * units.model_ms / 1e3
    broker_cores = (
        arriving * units.broker_request_us
        + devices / _KEEP_ALIVE_S * units.broker_ping_us
        + connects * units.broker_connect_us
    ) / 1e6
    broker_bytes = devices * units.broker_connection_bytes
    store_bytes = deliveries / given.peak * 86_400 * given.deliveries_days * units.delivery_bytes
    postgres_cores = deliveries * units.postgres_delivery_us / 1e6
    # A gateway's event loop is one thread, and so is a Mosquitto.
    gateways = max(
        1 if devices < 100 else 2,
        math.ceil((gateway_cores + model_cores) / given.full / given.replica_cores),
        math.ceil(gateway_cores / given.full),
    )
    brokers = max(1, math.ceil(broker_cores / given.full), math.ceil(devices / given.connections_broker))
    shares = {
        "the full model, of one gateway's cores": model_cores / given.replica_cores,
        "the gateway, of one core (its event loop)": gateway_cores,
        "the broker, of one core (its only thread)": broker_cores,
        "the broker, of its connections": devices / given.connections_broker,
        "PostgreSQL, of its commits": commits / units.postgres_commits,
        "PostgreSQL, of one core": postgres_cores,
    }
    first, second = sorted(shares, key=shares.__getitem__, reverse=True)[:2]
    cores = gateways * given.replica_cores + max(1.0, broker_cores / given.full) + max(1.0, postgres_cores / given.full)
    gib = (gateways * units.gateway_bytes + broker_bytes) / _MIB / 1024 + 2.0
    idle_gb = devices * units.idle_day_bytes / 2 * _DAYS_A_MONTH / _GB  # each way
    arriving_month = arriving / given.peak * 3600 * HOURS_A_MONTH
    line_gb = idle_gb + arriving_month * given.input_bytes / _GB
    out_gb = idle_gb + arriving_month * given.answer_bytes / _GB
    monthly = (
        HOURS_A_MONTH * (cores * given.core_hour + gib * given.gib_hour)
        + (store_bytes / _GB + 10) * given.gb_month
        + out_gb * given.gb_out  # what comes in is free nearly everywhere
    )
    return Step(
        devices,
        peak,
        escalations,
        deliveries,
        gateway_cores,
        model_cores,
        gateways,
        broker_cores,
        brokers,
        broker_bytes,
        commits,
        store_bytes,
        line_gb,
        out_gb,
        first,
        shares[first],
        second,
        shares[second],
        monthly,
    )


def _promise_us(units: Units) -> float:
    """What a promise adds to a request."""
    return max(0.0, units.gateway_delivery_us - units.gateway_http_us)
