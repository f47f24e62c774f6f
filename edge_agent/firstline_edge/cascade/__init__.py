"""Decides for each request which tier answers: the edge model, the cache or the full model.

Files
    cascade         one request, read from top to bottom
    runner          runs this device's own model, behind the cache
    router          thresholds and policy, with the certificates' state in the field
    hedging         asks the full model early if asking it after the edge model would be too late
    provisional     the edge answer now, with a promised correction
    turns           admits as many requests as fit a moment of the event loop
"""
