"""A model on several executors: each batch goes to the one with the earliest predicted completion.

One batch, from its start to its answer
    placement       where the next batch of a model completes first, and when waiting work completes; pure
    dispatcher      the pool of executors: runs batches, on another executor if one fails or is late; adds models
    member          one executor: its models, its running batches, its health, and predictions for a batch there
    reports         counts and states of the executors, for the metrics and the API
"""
