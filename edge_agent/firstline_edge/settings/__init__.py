"""What can be set on the device itself. What the fleet sets over it is in `configuration/`.

Rooms
    settings        all that can be set, section by section
    load            from one TOML file, variables and flags
    check           do they make sense together?
    last_good       the configuration to start with where the file is broken
"""
