"""Fleet management: the documents that gateways, devices and people exchange, and rules for them. No I/O.

Documents
    twin            desired and reported state of a device
    telemetry       counts of a device since its process started
    configuration   fleet-managed settings of an agent
    target          signed metadata of a bundle's files, with requirements on devices
    registry        the registry's HTTP interface
    rest            the fleet's REST API for people and devices
    rollout         the REST API's documents of rollouts
    profiling       profiling requests and their progress
    profiles        the HTTP interface of stored profiles
    audit_log       decisions as a chain of hashes

Rules
    expiry          warnings about metadata and authorities that expire soon
    update          the states of one update on one device
"""
