"""The present state of a device, from Linux's files.

    device          reads all sensors
    snapshot        all readings of one moment
    thermal         temperatures, throttling, clock frequencies
    power           rails, RAPL, batteries, power of the whole device
    load            memory, busy cores, network traffic

Reading files may take milliseconds, or hang with a driver, so it runs in a thread and never in a request. Content that
makes no sense is `Absent` with the reason, never an exception.
"""
