"""Settings from the fleet: fetched, verified, checked against the device's own, tried, and kept or rolled back.

Files
    configurator         the updates of the configuration
    configuration_store  the configuration that runs, the previous one, and the state of the update: one file
    settings_changes     checks a configuration against the device's own settings, and applies it to the agent
"""
