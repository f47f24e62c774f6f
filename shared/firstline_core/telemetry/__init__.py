"""Telemetry of both tiers: logs, metrics, traces and the decision log. Never a payload, never a secret.

The reports of devices to their fleet are `fleet/telemetry.py` of this package.
"""
