"""A model on several executors: each batch goes to the one that is expected to be done with it first.

One batch, from its coming to its answer
    dispatcher      chooses whom to ask first, and who is tried with a copy; models that come and go
    seats           where the next batch of a queue had best run, and whether it waits for that; pure
    nowhere         why no executor may run a batch now, and until when; pure
    race            another one is asked where the first fails or is late; the first answer counts
    asking          one executor is asked, and something is learned from what comes back
    member          one executor: what it runs now, and what a batch there would take
    running         a batch that it has, and how long that will still take; pure
    choice          which of them: earliest expected completion within the budgets; pure
    forecast        how long a model's batches take there: as measured, times the pace that it is seen to keep
    standing        who is left alone with a model after errors, and when somebody is tried with a copy; pure
    budgets         memory and energy that an executor may take
    costs           what a batch takes there: memory and energy
    profiles        costs from a profile of that machine
"""
