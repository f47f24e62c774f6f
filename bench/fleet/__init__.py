"""A fleet without devices: drawn figures, the real engine and store, simulated time.

population      devices that differ, and what a model does to them
driven          the real engine over a real store, at the pace of a simulated clock
judged          stages judged in memory, by the thousand
run             everything, as `make bench-fleet` does it
"""
