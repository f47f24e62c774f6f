"""Fleets to which rollouts bring models.

population      devices that differ, and the effect of a model on their answers
judged          stages judged in memory, by the thousand
driven          the rollout driver over a store, on a simulated clock
pretended       devices that report to the driver
run             every part, as `make -C bench fleet` runs it
"""
