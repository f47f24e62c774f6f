"""The models that this gateway serves.

Rooms
    folder           the bundles in a folder: found, read, loaded
    repository       those that are served, by name and version
    calibration      how long batches take, measured when a model is loaded
    residency/       which of them are in memory, within a budget
    fetched_bundles  bundles that were fetched from the registry, in a folder
    pending          models that are signed and not served yet, and the requests for them
"""
