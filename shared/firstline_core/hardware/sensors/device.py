"""All sensors of one device, read together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firstline_core.hardware.readings import Absent, Measured, Reading
from firstline_core.hardware.sensors.battery import supply
from firstline_core.hardware.sensors.device_power import device_power_w
from firstline_core.hardware.sensors.frequency import frequencies
from firstline_core.hardware.sensors.memory import available, memory
from firstline_core.hardware.sensors.processor import Processor
from firstline_core.hardware.sensors.rails import rails_w
from firstline_core.hardware.sensors.rapl import Rapl
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.hardware.sensors.temperature import temperatures_c
from firstline_core.hardware.sensors.throttling import Throttling
from firstline_core.hardware.sensors.traffic import Traffic
from firstline_core.hardware.tree import Tree, placed
from firstline_core.routing.tariff import LinkTariff, Tariff


class Sensors:
    """Reads the files anew each time: not for the hot path. For one thread.

    Args:
        tree: the kernel's files.
        tariff: stated costs, for what nothing measures.
        link: what the bytes of its traffic take.
        power_rails: names in `Snapshot.power_w` that together are the whole device; none for those known.
        queue: how many runs wait; None where nobody counts them.

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
        """How the device is now; what counters tell is since the reading before, and absent at the first.

        Args:
            now_s: monotonic time.
        """
        supplied, speed, left = supply(self.tree), frequencies(self.tree), memory(self.tree)
        load, (energy_j, domains_w) = self._processor.read(now_s), self._rapl.read(now_s)
        power_w = rails_w(self.tree)
        for name, domain in domains_w.items():
            placed(power_w, name, domain)
        for name, battery in supplied.draining_w.items():
            placed(power_w, f"battery {name}", battery)
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
            memory_total_bytes=left.total_bytes,
            memory_available_bytes=left.available_bytes,
            memory_stalled_share=left.stalled_share,
            cpu_busy_share=load.busy_share,
            device_power_w=device_power_w(
                power_w, load.busy_cores, rates, tariff=self._tariff, link=self._link, stated=self._power_rails
            ),
            queue_items=self._queued(),
        )

    def memory_available(self) -> Reading:
        """Bytes of memory that are left, by themselves: in a fraction of the time."""
        return available(self.tree)

    def _queued(self) -> Reading:
        if self._queue is None:
            return Absent("No agent runs here whose queue could be counted.")
        return Measured(float(self._queue()), "the agent")
