"""Logs and metrics of the gateway.

Rooms
    journal         one log line and one count for each request
    counting        counts answers shortly after they were sent
    statistics      runs of each model: how many, and how long
    metrics         the gateway's registry of metrics
"""
