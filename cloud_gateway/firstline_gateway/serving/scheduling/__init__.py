"""Admission of requests, and the order in which they run.

One request, from its arrival to its answer
    batcher         admits requests, runs them in batches and answers them
    admission       whether a request may enter
    shares          how much of the room one client, and one level of priority, may take
    margin          time kept free for what predictions miss
    pending         the requests that wait, in the order in which they are due
    completion      when work completes on slots side by side
    batches         which requests the next batch has
"""
