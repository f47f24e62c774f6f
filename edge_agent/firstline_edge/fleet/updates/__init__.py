"""Model updates from the fleet: fetched, verified, tried, and kept or rolled back.

On disk
    pointer         which slot runs, and whether it is on trial
    record          how the latest update of a model stands
    slots           two bundles, filled file by file
    history         all of these for one device

Steps
    updater         all updates of a device
    model_updates   the states of one model's update
    wanted          what the desired state means for an update
    wishes          the desired state and rollbacks on the device, until a model's task takes them up
    installation    from the desired state to a bundle in the other slot
    fetching        resumes downloads over unreliable links
    self_test       compares answers with those from where the bundle was made
    trial           puts a bundle before requests, and keeps it or rolls it back
    installed       opens the installed models when the agent starts

Collaborators
    means           everything that updates need
    ports           interfaces to metadata, bytes and the models that answer
    adapters        their implementations on a registry and on the agent's models
    verifying       verifies signed metadata in a separate process
    verifier        that process
"""
