"""What a device is and how it is, found out from the device itself.

    readings        Measured | Modelled | Absent: what one sensor says
    tree            small files of the kernel's, under a root that tests replace
    in_time         reading for commands, which a driver that hangs is not to hold up
    recording       what was read, as the text of a board for tests
    control_group   what of the machine this process may use
    sensors/        how a device is: heat, power, memory, load
    catalogue       what a device is: structs and their JSON
    survey          fills it: described from files, and measured
    cores           processor, instruction sets, caches
    accelerators    what the kernel shows beside it
    power_sources   supplies, rails, thermal zones
    network         links and their kinds
    disk            room, and how fast it is
    bandwidth       of memory, measured
    words           all that in lines for people
    engines         which providers and delegates work, each tried in a process of its own
    engine_trial    that process

No settings, no network; numpy is imported where something is measured, and nowhere else.
"""
