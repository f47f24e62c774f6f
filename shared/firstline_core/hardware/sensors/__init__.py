"""How a device is, from where Linux tells it; every file is read under a root that tests replace.

    device          all of them together: `Sensors.read() -> Snapshot`
    snapshot        all that was read at one moment: what the rest of the agent knows of the sensors
    temperature     thermal zones and processors' chips
    throttling      whether the hardware holds itself back, by cause
    frequency       cpufreq: now, allowed, rated
    rails           watts by rail: INA3221, INA2xx and others
    rapl            joules that processors count
    battery         charge, and whether external power is there
    memory          bytes that are left, and PSI
    processor       how busy the cores are
    traffic         bytes through the network interfaces
    device_power    watts of the whole device, measured or modelled

A sensor reads its files anew at each call, which may take milliseconds, or for ever where a driver hangs: that is for
a thread of its own, never for a request. Content that makes no sense is `Absent` with the reason, never an exception.
"""
