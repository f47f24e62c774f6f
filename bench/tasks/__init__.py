"""Measurements of the tasks on pairs of third-party models."""
