"""This device as one of a fleet: what it is told, what it says of itself, and what it counts. Off unless it is enabled.

Its twin
    twin            hears what is desired, says what is so
    ways            to the gateway: over MQTT, or by asking over HTTP
    http_client     the fleet's own connections to the gateway
    desired         what was desired last, on disk
    reported        what runs here
    counts          what was answered, by model
    starts          processes so far, and how many ended without a word
    brake           how many rows may be escalated in an hour
    updates/        models from the fleet: fetched, verified, tried, kept or rolled back
    configuration/  settings from the fleet: the same
    wiring          all of it, put together
"""
