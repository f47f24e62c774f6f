"""Measures bundles when the fleet asks for it, while the agent serves, and uploads the profiles.

    profiler        works through the requests
    gate            waits until the device and its requests can spare a point, and ends one that does harm

How a point is measured is in `firstline_core.profile`.
"""
