"""Settings from the fleet: fetched, verified, checked against the device's own, tried, and kept or rolled back.

Files
    overlay         a configuration over the device's own settings, which limit it
    kept            which configuration runs, which ran before, and how the latest update stands: one file
    beginning       reads that file when the agent starts
    ledger          its content in this process and on disk
    configurator    the states of an update
    fetching        fetches and verifies a configuration
    source          signed configurations of a registry
    adoption        exchanges the settings of an agent that is answering
"""
