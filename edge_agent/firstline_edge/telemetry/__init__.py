"""What the parts of the agent share for logs and status.

Files
    background      tasks that run as long as the agent, and why one of them ended
    link_traffic    bytes that one call sends and receives over the links
    version         the version of the agent
"""
