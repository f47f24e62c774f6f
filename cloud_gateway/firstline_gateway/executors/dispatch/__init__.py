"""A model on several executors: each batch goes to the one with the earliest predicted completion.

One batch, from its start to its answer
    dispatcher      the pool of executors: starts batches and probes, adds and removes models
    placement       where the next batch of a model completes first, and whether it waits for that; pure
    attempts        one batch: retried on another executor if it fails or is late, and what is learned from that
    member          one executor: its models, its running batches, its health, and predictions for a batch there
    forecast        predictions: the wait and time of a batch, and when waiting work completes; pure
    profiles        times of batches, from a profile of the machine
"""
