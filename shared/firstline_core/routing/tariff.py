"""What traffic and runs cost, as the device's owner states it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from firstline_core.routing.account import Cost

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class LinkTariff:
    """What a byte over one link takes.

    Args:
        joules_per_byte_sent, joules_per_byte_received: energy.
        money_per_byte: 0 over a link that is not metered.
        metered: its bytes cost money.
    """

    joules_per_byte_sent: float = 0.0
    joules_per_byte_received: float = 0.0
    money_per_byte: float = 0.0
    metered: bool = False

    def cost(self, sent: float, received: float, money: float = 0.0) -> Cost:
        """What so many bytes take, and `money` beside."""
        energy = sent * self.joules_per_byte_sent + received * self.joules_per_byte_received
        return Cost(sent + received, energy, (sent + received) * self.money_per_byte + money)


_UNSTATED = LinkTariff()


@dataclass(frozen=True, slots=True)
class Tariff:
    """All stated costs.

    Args:
        links: by name; a link that is not there costs nothing but its bytes.
        money_per_request: what the gateway's answer costs.
        joules_per_run: of the edge model, on one row.
        joules_per_core_s: what a busy core takes in a second, beyond the idle device.
        idle_w: what the idle device takes, in watts.
    """

    links: Mapping[str, LinkTariff] = field(default_factory=dict)
    money_per_request: float = 0.0
    joules_per_run: float = 0.0
    joules_per_core_s: float = 0.0
    idle_w: float = 0.0

    def of_link(self, link: str) -> LinkTariff:
        """What the link's bytes take."""
        return self.links.get(link, _UNSTATED)

    def runs(self, rows: int) -> Cost:
        """What running the edge model on so many rows costs."""
        return Cost(joules=rows * self.joules_per_run)

    def power_w(self, busy_cores: float, traffic_w: float = 0.0) -> float:
        """What the whole device draws, in watts, by these costs.

        Args:
            busy_cores: on average.
            traffic_w: what its traffic takes beside, see `LinkTariff.cost`.
        """
        return self.idle_w + busy_cores * self.joules_per_core_s + traffic_w
