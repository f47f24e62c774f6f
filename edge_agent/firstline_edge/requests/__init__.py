"""The context and rows of a request, and the work that equal requests share.

Files
    context         the state of one request in the cascade: its rows, their keys, and the answer that they make
    escalation      what is sent to the gateway, which of its answers are accepted, and corrections
    deadline        waits for work until a deadline
    single_flight   computes equal work once
"""
