"""Units of time and size in seconds and bytes."""

HOUR_S, DAY_S = 3600.0, 86_400.0
MIB, GIB = 1 << 20, 1 << 30
