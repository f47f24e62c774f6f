"""Logs of the gateway.

Modules
    journal         one log line and one count for each request
"""
