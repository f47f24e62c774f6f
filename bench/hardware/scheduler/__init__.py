"""Compares the gateway's dispatcher on two executors of different speed with each of them alone and with round robin.

    python bench/bench_hardware.py --only scheduler

Real parts are `Batcher`, `Dispatcher`, `LocalExecutor` and `OipServer` in this process, and a second gateway as a
separate process with the same model of a few milliseconds. That gateway shares its core with a busy loop, so it has
half of it. Requests have one row and arrive as a Poisson process, at a share of the measured capacity of both. Latency
counts from when a request was due. Each run is repeated, alternating with the others, and the medians count.

site        the model, the second gateway, and an engine in front of it
load        requests and their outcomes; executors in round robin instead of the dispatcher
runs        the runs and their figures
"""
