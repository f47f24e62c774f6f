"""Whether a stage's devices do worse than a control group's: promote, hold or abort, each with its numbers.

The device is the unit: the answers of one device resemble each other, and devices differ. Chance alone decides which of
the eligible devices a stage takes and which form its control group. If hardly any other division of the same devices
shows such a difference between the groups, the model caused it. This argument needs no assumption about what devices
measure or how they differ, and it stays exact when a stage is evaluated often, because each evaluation has its own
share of the error probability.

The terms:

- figure: a number that describes a device in a period, such as its share of errors
- finding: the result for one figure in one evaluation: both groups, the p-value and the detectable difference
- level: the p-value at or below which one figure aborts the rollout at one evaluation
- look: one evaluation of a stage; also its number, from 1
- detectable: of a difference: large enough to be detected with probability 0.9 at this level

The modules:

    figures         what a device did in a period, and the figures that are compared
    statistics      the permutation test, the error probability of one evaluation, and the detectable difference
    verdict         all figures together: promote, hold or abort
"""
