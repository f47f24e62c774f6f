"""The operator's settings.

Rooms
    settings        all that can be set, section by section
    load            from one TOML file, variables and flags
    check           do they make sense together?
    cores           how many this process may use, which some defaults follow
"""
