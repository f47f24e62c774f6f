"""Fleets that models are brought to, by the thousand drawn, simulated or real.

population      devices that differ, and what a model does to their answers
judged          stages judged in memory, by the thousand

driven          the rollouts' engine over a store, at the pace of a simulated clock
agents          devices that update by the agent's own code, with the clock and the line simulated
world           so many of them
shelf           the registry that they fetch from

real            agents, a gateway and a broker as processes, and whole rollouts
processes       of those
bundles         of models that are good, or bad in one way each

run             everything, as `make -C bench fleet` does it
"""
