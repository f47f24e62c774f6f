"""The settings of the device. The fleet's configuration over them is in `fleet/configuration/`.

Rooms
    settings        all that can be set, section by section
    load            from one TOML file, variables and flags
    identity        the name and the addresses that a device received when it joined a gateway
    check           do they make sense together?
    last_good       the configuration to start with where the file is broken
"""
