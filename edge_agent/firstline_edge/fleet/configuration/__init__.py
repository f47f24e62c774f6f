"""Settings from the fleet: fetched, verified, checked against the device's own, tried, and kept or rolled back.

Files
    configurator                the updates of the configuration, and its application to the agent
    installed_configuration     the configurations of this device, and the settings that result from them
"""
