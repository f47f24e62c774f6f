"""Model updates from the fleet: downloaded, verified, tried, and committed or rolled back.

Files
    state_machine      the states of one update of a model or the configuration, and when a trial is rolled back
    model_updates      how a model is installed, tried and rolled back; all updates of a device
    installed          what runs, what ran before, and the state of the update: one file
    model_store        the slots and files of all models
    installation       downloads a bundle into the spare slot, and checks the hashes of its files
    trial              tests a model before it answers requests, and counts its failures then
    registry           signed metadata and files of the gateway's registry
    metadata_verifier  the process that verifies signed metadata, and no other file
"""
