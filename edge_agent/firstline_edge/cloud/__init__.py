"""The client of the gateway: asks the full model, over whichever link works.

Modules
    client          `CloudClient`: which rows travel, and checks of the answers
    complaints      the gateway's refusals of this device's models
    punctuality     predicts whether an answer will come in time
    live_traffic    counts the escalations in progress
    chain           `LinkChain`: the links in order of preference, with failover
    links           creates the links from the settings
    link            the protocol of a link, and its status for people
    link_state      one link's breaker, timing and last failure
    breaker         the circuit breaker
    probing         background probes of links that are down
    retry_budget    limits retries to a share of all calls
    http_link       the link over HTTP
    mqtt_link       the link over MQTT 5
    metrics         gauges of links and retries
"""
