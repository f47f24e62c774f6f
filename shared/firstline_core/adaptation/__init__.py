"""Chooses which variant of a model answers: pure rules, the same on a device, in a simulation and in a replay.

    ladder          the variants of a bundle on one device, best first, and the one that answers a request
    guards          what temperature, memory and battery allow
    controller      the best rung that the device may use now, with hysteresis

The controller reads the sensors every few seconds and limits how good a variant may be. The choice considers one
request's deadline and queue. Nothing here reads a sensor or a clock.
"""
