"""Figures beside their aims."""

from __future__ import annotations

from bench.figures import Figure


def at_least(name: str, value: float | None, aim: float, unit: str = "") -> Figure:
    """One that should be so large; what was not measured does not hold."""
    return Figure(name, _rounded(value, 3), unit, f">= {aim:g}", value is not None and value >= aim)


def at_most(name: str, value: float | None, aim: float, unit: str = "") -> Figure:
    """One that should be so small; what was not measured does not hold."""
    return Figure(name, _rounded(value, 3), unit, f"<= {aim:g}", value is not None and value <= aim)


def told(name: str, value: float | None, unit: str = "", digits: int = 3) -> Figure:
    """One that is only told."""
    return Figure(name, _rounded(value, digits), unit)


def _rounded(value: float | None, digits: int) -> float | None:
    if value is None:
        return None
    return round(value, digits) if digits else float(round(value))
