"""Settings from the fleet: fetched, verified, checked against the device's own, tried, and kept or rolled back.

Files
    configurator                the updates of the configuration
    installed_configuration     the configurations of this device, and the settings that result from them
    settings_changes            checks a configuration against the device's own settings, and applies it to the agent
"""
