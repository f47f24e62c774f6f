"""Admission of requests, and the order in which they run.

One request, from its arrival to its answer
    batcher      admits requests, runs them in batches, on the event loop or on executors, and answers them
    admission    the requests that wait, and whether another may: space, time, shares of clients and levels, margin
    order        the choice of the next batch, earliest deadline first; pure
"""
