"""Whether a stage's devices do worse than a control group's: promote, hold or abort, each with its numbers.

The device is the unit: the answers of one device resemble each other, and devices differ. Chance alone decides which of
the eligible devices a stage takes and which form its control group. If hardly any other division of the same devices
shows such a difference between the groups, the model caused it. This argument needs no assumption about what devices
measure or how they differ, and it stays exact when a stage is evaluated often, because each evaluation has its own
share of the error probability.

    figures         what a device did in a period, and the figures that are compared
    statistics      the permutation test, the error probability of one evaluation, and the detectable difference
    verdict         all figures together: promote, hold or abort
"""
