"""A model on several executors: each batch goes to the one with the earliest predicted completion.

One batch, from its start to its answer
    placement       where the next batch of a model completes first, and when waiting work completes; pure
    dispatcher      the pool of members: runs batches, on another member if one fails or is late; adds models
    member          an executor, or one of its servers: models, running batches, health, and predictions for a batch
    reports         counts and states of the executors, for the metrics and the API
"""
