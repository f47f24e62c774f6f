"""This device as a member of a fleet: its twin, model updates and remote configuration. Off unless it is enabled.

Files
    start               reads the fleet's state before the models are opened
    member              the fleet's part of a running agent
    twin                receives the desired state and reports the actual one
    transports          the twin's transport: MQTT, or polling over HTTP
    http_client         the fleet's HTTP connections to the gateway
    desired             the latest desired state, on disk
    reported            what runs here, for the report
    counts              answers by model, for the telemetry
    starts              starts of the agent, and how many ended uncleanly
    escalation_limiter  limits the rows that may be escalated in an hour
    updates/            model updates
    configuration/      remote configuration
"""
