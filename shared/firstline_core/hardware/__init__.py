"""The hardware of a device and its present state, read from the device itself.

    readings        measured, modelled and absent readings, and all readings of one moment
    kernel_files    small kernel files under a root that tests replace, and the limits of this process's control group
    sensors         temperatures, throttling, clock frequencies, memory, load
    power           rails, RAPL, batteries, power of the whole device
    catalogue       the document that describes a device; catalogue and readings as text
    survey          fills the catalogue: from files, and by trials of engines
    engines         tries every provider and delegate, each in a process of its own

Nothing here reads settings or uses the network; numpy is imported only for trials. Reading files may take milliseconds,
or hang with a driver, so it runs in a thread and never in a request.
"""
