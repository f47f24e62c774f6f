"""The settings of the device. `fleet/configuration/` applies the fleet's configuration to them.

Files
    settings        names, types, limits, defaults and documentation of all settings
    load            reads them from one TOML file, variables and flags
    check           checks that involve several settings
    identity        name and addresses that a device received when it joined a gateway
"""
