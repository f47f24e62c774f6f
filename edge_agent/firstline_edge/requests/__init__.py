"""The context and rows of a request, and the work that equal requests share.

Files
    context         the state of one request in the cascade: its rows, their keys, and the answer that they make
    deadline        waits for work until a deadline
    recorder        of each answer: counters, statistics by model, log lines, the decision log
    full_answers    escalations to the gateway, the acceptance of its answers, and corrections
    single_flight   computes equal work once
"""
