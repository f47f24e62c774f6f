"""The costs of traffic and runs, as configured by the owner of the device. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from firstline_core.routing.account import Cost

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class LinkTariff:
    """The cost of a byte over one link.

    Args:
        joules_per_byte_sent, joules_per_byte_received: energy.
        money_per_byte: 0 for an unmetered link.
        metered: whether bytes cost money.
    """

    joules_per_byte_sent: float = 0.0
    joules_per_byte_received: float = 0.0
    money_per_byte: float = 0.0
    metered: bool = False

    def cost(self, sent: float, received: float, money: float = 0.0) -> Cost:
        """Returns the cost of a transfer, plus `money`."""
        energy = sent * self.joules_per_byte_sent + received * self.joules_per_byte_received
        return Cost(sent + received, energy, (sent + received) * self.money_per_byte + money)


_UNSTATED = LinkTariff()


@dataclass(frozen=True, slots=True)
class Tariff:
    """All configured costs.

    Args:
        links: by name; unknown links only cost bytes.
        money_per_request: cost of an answer of the gateway.
        joules_per_run: of the edge model, on one row.
        joules_per_core_s: energy of a busy core per second, above the idle device.
        idle_w: power of the idle device (watts).
    """

    links: Mapping[str, LinkTariff] = field(default_factory=dict)
    money_per_request: float = 0.0
    joules_per_run: float = 0.0
    joules_per_core_s: float = 0.0
    idle_w: float = 0.0

    def of_link(self, link: str) -> LinkTariff:
        """Returns the tariff of a link."""
        return self.links.get(link, _UNSTATED)

    def runs(self, rows: int) -> Cost:
        """Returns the cost of running the edge model on a number of rows."""
        return Cost(joules=rows * self.joules_per_run)

    def power_w(self, busy_cores: float, traffic_w: float = 0.0) -> float:
        """Returns the power of the whole device (watts) by these costs.

        Args:
            busy_cores: on average.
            traffic_w: additional power of its traffic, see `LinkTariff.cost`.
        """
        return self.idle_w + busy_cores * self.joules_per_core_s + traffic_w
