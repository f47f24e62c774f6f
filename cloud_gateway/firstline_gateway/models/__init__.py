"""The models that this gateway serves.

Rooms
    folder          the bundles in a folder: found, read, loaded
    repository      those that are served, by name and version
    calibration     how long batches take, measured when a model is loaded
    residency/      which of them are in memory, within a budget
    fetched/        those that the fleet needs, fetched from the registry and retired
"""
