"""The client of the gateway: sends requests to the full model, over whichever link works.

Modules
    client          `CloudClient`: which rows travel, refusals of models, caching of the answers
    chain           `LinkChain`: the links in order of preference: failover, checks of the answers, background probes
    links           creates the links from the settings; their metrics
    link            the protocol of a link, and its status for people
    breaker         the circuit breaker of a link, and the retry budget of all links
    http_link       the link over HTTP
    mqtt_link       the link over MQTT 5
"""
