"""The models that this gateway serves.

Modules
    folder           finds, reads and loads the bundles of a folder, and measures the times of their batches
    repository       the served models, by name and version, and those that can be fetched
    memory           the models in memory, their holders, and the free memory
    residency        holds a model for a request, loads it if it is not in memory, and obeys an operator's orders
    fetched_bundles  bundles that were fetched from the registry, in a folder
"""
