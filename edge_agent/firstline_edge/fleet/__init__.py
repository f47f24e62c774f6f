"""This device as a member of a fleet: its twin, model updates and remote configuration. Off unless it is enabled.

Files
    fleet_state         what the device stores for its fleet, and the number of the agent's starts
    member              the twin: takes what the fleet desires, and reports the actual state
    updater             all updates of the models and of the configuration
    transports          the twin's transport: MQTT, or polling over HTTP
    http_client         the fleet's HTTP connections to the gateway
    report              the content of reports: models, hardware, counts of answers
    escalation_limiter  limits the rows that may be escalated in an hour
    updates/            model updates
    configuration/      remote configuration
"""
