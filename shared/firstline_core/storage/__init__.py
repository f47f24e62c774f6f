"""Durable files, seals and group commits for a disk that may lose power, fill up or damage data.

Modules
    files           replaces, copies, sets aside and erases files; says why a file cannot be used
    structs         structs in files with a checksum, and in documents of other processes
    seals           the checksum or encryption around a record
    group_writer    one thread that commits the writes of many callers together
    settings        settings from a TOML file, the environment and flags
    setting_places  the line, variable or flag that gives a setting its value
    secrets         files with one secret
    artefact        a file of a bundle, with path and digest
"""
