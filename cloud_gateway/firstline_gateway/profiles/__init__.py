"""The cost of models on machines: profiles that devices and people upload, and requests for devices to measure.

    records          the table, and functions within a caller's transaction
    profiles         stores uploaded profiles, and requests profiles from devices by their desired documents; a device
                     may only upload what it was requested to measure

The profile document is in `firstline_core.profile`.
"""
