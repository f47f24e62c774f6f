"""Whether a stage's devices do worse than a control group's: promote, hold or abort, each with its numbers.

The device is the unit: its answers resemble each other, and devices differ. Chance alone decides which of the eligible
devices a stage takes and which it leaves alone as its control, so a difference between the two groups that hardly any
other division of the same devices would show is the model's doing. That argument needs no assumption on what devices
measure or how they differ, and it stays exact when a stage is looked at often, because each look has a share of the
error probability of its own.

    periods         what a device did in a period, and the figures that are compared
    permutation     the test: how many other divisions would show such a difference
    spending        the share of the error probability that one look at one figure has
    sensitivity     the smallest difference that a stage can see
    verdict         all figures together: promote, hold or abort
"""
