"""The hardware of a device and its present state, read from the device itself.

    readings        measured, modelled and absent sensor readings
    tree            small kernel files, under a root that tests replace
    timeouts        reads for commands with a time limit, because a driver may hang
    recording       records what was read, as a board for tests
    control_group   limits of this process's control group
    sensors/        present state: temperature, power, memory, load
    catalogue       the document that describes a device
    survey          fills the catalogue from files
    benchmarks      measures memory bandwidth, disk and runtimes
    engine_trial    the process that tries one runtime
    text            catalogue and readings as text

Nothing here reads settings or uses the network; numpy is imported only to measure.
"""
