"""Counters, logs and the decision log of the agent.

Files
    recorder        of each answer: counters, statistics by model, log lines, the decision log
    background      tasks that run as long as the agent, and why one of them ended
    link_traffic    bytes that one call sends and receives over the links
    version         the version of the agent
"""
