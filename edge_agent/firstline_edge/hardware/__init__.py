"""What the agent knows of the device that it runs on.

    sampler         how the device is, read every few seconds beside the requests
    memory_watch    when memory is looked at before the next reading
    metrics         the same as gauges
    surveyor        what it is: described at once, measured once in the background, kept in the state directory
    room            all of it, put together

Sensors and the survey themselves are `firstline_core.hardware`'s.
"""
