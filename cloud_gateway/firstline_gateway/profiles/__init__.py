"""The cost of models on machines: profiles that devices and people upload, and requests for devices to measure.

    records          the tables, and functions within a caller's transaction
    profiles         stores uploaded profiles; a device may only upload what it was requested to measure
    requests         requests a profile from a device until it has measured or the request expires

The profile document is in `firstline_core.profile`.
"""
