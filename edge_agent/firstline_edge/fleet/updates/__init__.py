"""Model updates from the fleet: downloaded, verified, tried, and committed or rolled back.

Files
    state_machine      the states of one update of a model or the configuration, and when a trial is rolled back
    model_updates      installs, tries and rolls back models; all updates of a device
    installed          the present model, the one before, and the state of the update: one file
    model_store        the slots and files of all models
    installation       downloads a bundle into the spare slot, and checks the hashes of its files
    trial              tests a model before it answers requests, and counts its failures then
    registry           signed metadata and files of the gateway's registry
    metadata_verifier  the process that verifies signed metadata, and no other file
"""
