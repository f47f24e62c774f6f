"""An hour of bursts on a simulated Raspberry Pi 4: the production controller and choice, next to each variant alone.

scenario    the stated constants and the arrivals
variants    answers, certificates and times of the real variants on real images
device      the simulated device: its queue, its link, its heat
runs        figures of the hour

What is real: `firstline_core.adaptation` (ladder, guards, controller, choice), the agent's `Pace`, `LatenessGate` and
`LinkTiming`; of each row, what the variants say and whether their certificates keep it; their times beside each other.
What is fitted: the heat (`thermal.py`). What is stated: `Stated`.

A row is met where its final answer is there by its deadline: kept under its variant's certificate, or the full
model's. A provisional answer is an answer in time too, and counted as such, but not as met.
"""
