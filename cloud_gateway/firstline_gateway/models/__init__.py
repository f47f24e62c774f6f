"""The models that this gateway serves.

Modules
    folder           finds, reads and loads the bundles of a folder
    repository       the served models, by name and version
    calibration      the times of batches, measured when a model is loaded
    residency/       the models in memory, within a budget
    fetched_bundles  bundles that were fetched from the registry, in a folder
"""
