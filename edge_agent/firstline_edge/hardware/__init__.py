"""The state and the hardware of the device that the agent runs on.

    sampler         reads the sensors every few seconds, in a thread, and shows the readings as metrics
    surveyor        the hardware catalogue: described at once, its engines tried once in the background, stored

Sensors, catalogue and survey are in `firstline_core.hardware`.
"""
