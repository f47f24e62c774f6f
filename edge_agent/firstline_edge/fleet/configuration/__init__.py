"""Settings come to this device from the fleet: fetched, verified, held against its own, tried, and kept or undone.

Rooms
    overlay         a configuration over the device's own settings, which bound it
    kept            which one runs, which ran before, and how the latest update stands: one file
    beginning       what a start makes of that file
    configurator    the states of an update, one after the other
    fetching        brought here, verified
    source          where it comes from
    ledger          what holds, in this process and on the disk
    adopting        other settings for an agent that is answering
    room            all of it, put together
"""
