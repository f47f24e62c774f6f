"""The Python client of the fleet API: devices, rollouts and profiles of one gateway."""

from __future__ import annotations

from firstline.fleet.client import Fleet, open_fleet

__all__ = ["Fleet", "open_fleet"]
