"""Parts of logs and status that all packages of the agent share.

Files
    background      tasks that run as long as the agent, and why one of them ended
    link_traffic    bytes that one call sends and receives over the links
    version         the version of the agent
"""
