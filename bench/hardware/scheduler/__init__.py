"""Two executors of different speed: the gateway's dispatcher beside each of them alone, and beside taking turns.

    python bench/bench_hardware.py --only scheduler

What is real: `Batcher`, `Dispatcher`, `LocalExecutor` and `OipExecutor` in this process, and a second gateway as a
process of its own, with the same model of some milliseconds. That one shares its core with a process that only counts,
so that it has half of it. Requests come one row each as a Poisson process, at a share of what both were measured to
answer together; time counts from when a request was due. Each run is repeated, in turn with the others, and the medians
count.

site        the model, the gateway behind, and an engine in front of it
turns       one executor after the other: what there would be without the dispatcher
load        requests, and what became of them
runs        which runs there are
shared      another gateway in front of the same executor
table       their figures
"""
