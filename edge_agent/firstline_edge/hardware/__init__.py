"""What the agent knows about the device it runs on.

    sampler         reads the sensors every few seconds, in a thread
    metrics         the readings as gauges
    surveyor        the hardware catalogue: described at once, measured once in the background, stored

Sensors, catalogue and survey are in `firstline_core.hardware`.
"""
