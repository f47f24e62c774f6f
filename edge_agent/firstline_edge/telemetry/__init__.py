"""What the agent tells of itself.

Rooms
    recorder        of each answer: counters, log lines, the decision log
    counted         how often, and how long, each model answered
    report          how it is: status, the birth message, gauges
    link_traffic    bytes that one call sends and receives over the links
"""
