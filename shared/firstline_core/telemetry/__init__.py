"""Telemetry of both tiers: logs, metrics, traces and the decision log. Never a payload, never a secret."""
