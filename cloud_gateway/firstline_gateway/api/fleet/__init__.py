"""The REST API of the fleet below /fleet/v1, for commands, applications, the console and devices.

Shared by all routes
    problems        errors as `application/problem+json` (RFC 9457)
    shared          authentication, bodies, names, pages, and conditional answers
    ranges          range requests for files

Routes
    twins           for devices: the desired and the reported state
    devices         for operators: devices, tags, the limit on escalations
    rollouts        for operators: rollouts of models and configurations
    profiles        measured costs of models by machine
    audit           for operators: the audit log
    blobs           files of bundles: upload and download
    registry        signed metadata, bundles, aliases, state of the registry
    configurations  signed configurations
"""
