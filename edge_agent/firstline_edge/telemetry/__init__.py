"""What the agent tells of itself.

Rooms
    recorder        of each answer: counters, log lines, the decision log
    counted         how often, and how long, each model answered
    background      tasks that run as long as the agent, and why one of them ended
    report          how it is: status, the birth message, gauges
    link_traffic    bytes that one call sends and receives over the links
"""
