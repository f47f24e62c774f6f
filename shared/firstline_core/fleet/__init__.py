"""Fleet management: the documents that gateways, devices and people exchange, and rules for them. No I/O.

Documents
    twin            what a device shall run, and what it does run
    telemetry       what a device counted since its process began
    configuration   settings of an agent, as they travel
    target          what is signed of a bundle's files: who needs them, what they ask of a device
    registry        what a registry and those who fill it say to each other
    rest            what people and devices ask of a gateway over HTTP
    rollout         what a gateway says of its rollouts
    profiling       a device is asked to measure a bundle, and says how far it is
    profiles        profiles that a gateway keeps, over HTTP
    audit_log       what was decided, as a chain of hashes

Rules
    expiry          what of metadata and authorities is to be renewed, said in time
    update          the states of one update on one device
"""
