"""Reads all sensors of one device together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firstline_core.hardware.readings import Absent, Measured, Reading
from firstline_core.hardware.sensors.load import Processor, Traffic, available_memory, memory
from firstline_core.hardware.sensors.power import Rapl, device_power_w, rails_w, supply
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.hardware.sensors.thermal import Throttling, frequencies, temperatures_c
from firstline_core.hardware.tree import Tree, add_reading
from firstline_core.routing.account import LinkTariff, Tariff


class Sensors:
    """The sensors of one device. Reading takes milliseconds or longer; use from one thread.

    Args:
        tree: the kernel's files.
        tariff: stated costs, for what no sensor measures.
        link: stated costs of the traffic's bytes.
        power_rails: names in `Snapshot.power_w` that together are the whole device; empty for the known ones.
        queue: number of waiting runs; None if no agent runs.

    Attributes:
        tree: the kernel's files.
    """

    def __init__(
        self,
        tree: Tree | None = None,
        *,
        tariff: Tariff | None = None,
        link: LinkTariff | None = None,
        power_rails: Sequence[str] = (),
        queue: Callable[[], float] | None = None,
    ) -> None:
        self.tree = tree or Tree()
        self._tariff = tariff or Tariff()
        self._link = link or LinkTariff()
        self._power_rails = power_rails
        self._queue = queue
        self._throttling = Throttling(self.tree)
        self._rapl = Rapl(self.tree)
        self._processor = Processor(self.tree)
        self._traffic = Traffic(self.tree)

    def read(self, now_s: float) -> Snapshot:
        """Reads everything; rates of counters are since the previous reading, and absent at the first one.

        Args:
            now_s: monotonic time.
        """
        supplied, speed, memory_now = supply(self.tree), frequencies(self.tree), memory(self.tree)
        load, (energy_j, domains_w) = self._processor.read(now_s), self._rapl.read(now_s)
        power_w = rails_w(self.tree)
        for name, domain in domains_w.items():
            add_reading(power_w, name, domain)
        for name, battery in supplied.draining_w.items():
            add_reading(power_w, f"battery {name}", battery)
        rates = self._traffic.read(now_s)
        return Snapshot(
            at_s=now_s,
            temperature_c=temperatures_c(self.tree),
            throttling=self._throttling.read(),
            frequency_hz=speed.now_hz,
            frequency_max_hz=speed.allowed_hz,
            frequency_rated_hz=speed.rated_hz,
            power_w=power_w,
            energy_j=energy_j,
            battery_share=supplied.battery_share,
            powered=supplied.powered,
            memory_total_bytes=memory_now.total_bytes,
            memory_available_bytes=memory_now.available_bytes,
            memory_stalled_share=memory_now.stalled_share,
            cpu_busy_share=load.busy_share,
            device_power_w=device_power_w(
                power_w, load.busy_cores, rates, tariff=self._tariff, link=self._link, power_rails=self._power_rails
            ),
            queue_items=self._queued(),
        )

    def memory_available(self) -> Reading:
        """Reads only the available memory, in a fraction of the time."""
        return available_memory(self.tree)

    def _queued(self) -> Reading:
        if self._queue is None:
            return Absent("No agent runs here whose queue could be counted.")
        return Measured(float(self._queue()), "the agent")
