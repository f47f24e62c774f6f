"""Models come to this device from the fleet: fetched, verified, tried, and kept or undone.

What is on the disk
    pointer         which slot runs, and whether it is being tried
    record          how the latest update of a model stands
    slots           two bundles, filled file by file
    history         all of it, and what a start makes of it

What is done
    updater         all updates of a device
    model_updates   the states of one model's updates, one after the other
    wanted          what the fleet's word says of an update
    wishes          that word, and what somebody at the device asks for, left for a model's task to find
    trial           put before requests, looked at, kept or gone back from
    installation    from a word of the fleet to a bundle in the other slot
    self_test       does it answer here as it did where it was made?
    fetching        a file over a line that breaks

What it rests on
    means           all that updates are made with
    ports           metadata, bytes, and what answers, as the updater sees them
    verifying       what is signed now, as a process says that ends with the look
    verifier        that process
    adapters        the same on a registry and on the models of an agent
"""
