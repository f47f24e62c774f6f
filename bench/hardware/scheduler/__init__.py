"""Two executors of different speed: the gateway's dispatcher beside each of them alone, and beside taking turns.

    python bench/bench_hardware.py --only scheduler

What is real: `Batcher`, `Dispatcher`, `LocalExecutor` and `OipExecutor` in this process, and a second gateway as a
process of its own, with the same model of some milliseconds. That one shares its core with a process that only counts,
so that it has half of it. Requests come one row each as a Poisson process, at a share of what both were measured to
answer together; time counts from when a request was due. Each run is repeated, in turn with the others, and the medians
count.

site        the model, the gateway behind, and an engine in front of it
load        requests and their outcomes; executors that take turns instead of the dispatcher
runs        the runs and their figures
"""
