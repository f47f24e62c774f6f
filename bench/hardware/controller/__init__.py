"""An hour of bursts on a simulated Raspberry Pi 4: the production controller and choice, beside each variant alone.

    PYTHONPATH=tests:bench python bench/bench_hardware.py --only controller

scenario    what is stated, and what arrives
measured    what the real variants say of real images, certify and take
device      the simulated device: its queue, its link, its heat
runs        figures of the hour, of warmer rooms, and of others with one constant changed

What is real: `firstline_core.adaptation` (ladder, guards, controller, choice), the agent's `Pace`, `Punctuality` and
`LinkTiming`; of each row, what the variants say and whether their certificates keep it; their times beside each other.
What is fitted: the heat (`thermal.py`). What is stated, and varied one by one afterwards: `Stated`.

A row is met where its final answer is there by its deadline: kept under its variant's certificate, or the full
model's. A provisional answer is an answer in time too, and counted as such, but not as met.
"""
