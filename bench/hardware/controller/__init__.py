"""Simulates an hour of bursts on a Raspberry Pi 4: the production controller and choice, and each variant alone.

scenario    the assumed constants and the arrivals
variants    answers, certificates and times of the real variants on real images
device      the simulated device: its queue, its link, its temperature
runs        figures of the hour

Real parts are `firstline_core.adaptation` (ladder, guards, controller, choice) and the agent's `RelativeRunTimes`,
`LatenessGate` and `LinkTiming`; the variants' answers to each row and whether their certificates accept them; and the
ratios of their times. The temperature model is fitted (`thermal.py`). `Scenario` has the assumptions.

The deadline of a row is met if its final answer arrives in time: an edge answer that is accepted under its variant's
certificate, or the full model's. A provisional answer in time is counted, but does not meet the deadline.
"""
