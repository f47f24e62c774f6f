"""Who runs when, and for how long they are waited for.

Rooms
    turns           who begins next, while many come at once
    single_flight   what is asked twice at a time is done once
    workers         threads for runs that would hold up the event loop
    deadline        waits no longer than that
"""
