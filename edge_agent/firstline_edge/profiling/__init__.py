"""Bundles are measured where the fleet asks for it, beside the requests, and the profiles go to the gateway.

    profiler        one request after the other, as long as each is wanted
    ledger          how far each came, on disk
    yielding        when measuring gives way to the device and to its requests
    gate            waits for that to be over
    measuring       runs the process that measures
    process         that process: it gives way to everybody, and ends first where memory ends
    orders          which bundle is measured, and with what settings

How a point is measured is `firstline_core.profile`'s.
"""
