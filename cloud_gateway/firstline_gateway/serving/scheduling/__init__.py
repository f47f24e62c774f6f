"""Admission of requests, and the order in which they run.

One request, from its arrival to its answer
    batcher      admits requests, runs them in batches, on the event loop or on executors, and answers them
    admission    whether a request may enter: space, time, shares of clients and levels, margin for errors
    queue        the requests that wait, in the order in which they are due, and the choice of the next batch
"""
