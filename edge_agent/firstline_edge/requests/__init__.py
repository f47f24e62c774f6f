"""The context and rows of a request, and the work that equal requests share.

Files
    context         the state of one request in the cascade
    rows            the rows of a request, and the answer that they make together
    keys            digests of a row, and the keys under which its answers are stored
    model_output    what a model says about one row
    escalation      what is sent to the gateway, and which of its answers are accepted
    deadline        waits for work until a deadline
    single_flight   computes equal work once
"""
