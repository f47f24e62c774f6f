"""The REST API of the fleet below /fleet/v1, for commands, applications, the console and devices.

Modules
    devices         for operators: devices, tags, the limit on escalations; for devices: desired and reported state
    rollouts        for operators: rollouts of models and configurations
    audit_log       for operators: the audit log; for consoles: sign-ins
    profiles        measured costs of models by machine
    registry        files of bundles, signed metadata, bundles, configurations and aliases
"""
