"""A model on several executors: each batch goes to the one with the earliest predicted completion.

One batch, from its start to its answer
    dispatcher      the pool of executors: starts batches and probes, adds and removes models
    placement       where the next batch of a model completes first, and whether it waits for that; pure
    refusals        why no executor may run a batch now, and until when; pure
    batch_run       one batch: retried on another executor if it fails or is late
    attempts        some requests of a batch on one executor, and what is learned from them
    member          one executor: its models, its running batches, and predictions for a batch there
    running_batch   a batch on an executor, and the time that is left; pure
    choice          the earliest predicted completion within the budgets; pure
    forecast        how long a model's batches take on an executor: measured times, times its pace; pure
    health          ejection after errors, and probes that end it; pure
    budgets         memory and energy that an executor may take
    costs           memory and energy of a batch
    profiles        costs from a profile of the machine
"""
