"""Both tiers' own logic on a simulated clock, network and disk: what happens is a function of a seed.

plan        what a seed means: traffic, weather, outages, restarts, clock jumps
models      three bundles whose answers anybody can compute
disk        the outbox's own file, written in simulated time, and lost where it was not committed
wire        the link, which refuses, times out and loses answers
device      an agent that can be killed
cloud       a gateway that can be killed
book        who asked what and what became of it: the invariants
run         one seed, or many on all cores
"""
