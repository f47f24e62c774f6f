"""Which variant of a model answers now: pure rules, the same on a device, in a simulation and in a replay.

    ladder      a bundle's variants on this device, the best first
    guards      what heat, memory and battery say: compute nothing, the cheapest, step down, stay, or there is room
    controller  how far down the ladder the device stands, with hysteresis
    thermostat  how far down heat asks it to stand, as a number between two rungs
    sharing     which requests are the share that gets the further one of the two
    choice      for one request: the best variant from there on that is in time

Two rules, at two speeds. The controller looks at the sensors every few seconds and sets how good a variant may be at
all; the choice looks at one request's deadline and at what waits before it. Nothing here reads a sensor or a clock.
"""
