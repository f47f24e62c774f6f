"""This device as a member of a fleet: its twin, model updates and remote configuration. Off unless it is enabled.

Files
    start               reads the fleet's state before the models are opened, and counts the agent's starts
    member              the fleet's part of a running agent
    twin                stores the desired state, and reports the actual one
    transports          the twin's transport: MQTT, or polling over HTTP
    http_client         the fleet's HTTP connections to the gateway
    report              the content of reports: models, hardware, counts of answers
    escalation_limiter  limits the rows that may be escalated in an hour
    updates/            model updates
    configuration/      remote configuration
"""
