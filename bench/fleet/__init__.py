"""Fleets to which rollouts bring models.

population      devices that differ, and the effect of a model on their answers
judged          stages judged in memory, by the thousand
driven          the rollout driver over a store, on a simulated clock
pretended       devices that only report to the driver
agents          devices that update with the agent's own code on a simulated clock and link
world           many of these agents, and the bundles that they run
shelf           the registry from which they fetch
run             every part, as `make -C bench fleet` runs it
"""
