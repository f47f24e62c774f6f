"""Fleet management: the documents that gateways, devices and people exchange, and rules for them. No I/O.

Documents
    twin               desired and reported state of a device, with profiling requests and their progress
    telemetry          counts of a device since its process started
    configuration      fleet-managed settings of an agent
    target             signed metadata of a bundle's files, with requirements on devices
    registry           the registry's HTTP interface, and warnings about what expires soon
    rest               the fleet's REST API for people and devices
    rollout_documents  the REST API's documents of rollouts and of the audit log
    profiles           the HTTP interface of stored profiles
    audit_log          decisions as a chain of hashes
    persons            persons who sign in to a console, and their roles

Rules
    selector           selects devices by their tags
    update             the states of one update on one device
"""
