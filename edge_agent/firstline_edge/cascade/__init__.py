"""Decides for each request which tier answers: the edge model, the cache or the full model.

Files
    cascade         one request, read from top to bottom
    admission       admits as many requests as fit a moment of the event loop
    runner          runs this device's own model, behind the cache
    router          decides a row by policy, threshold and the state of the certificate
    hedging         asks the full model early if asking it after the edge model would be too late
    provisional     the edge answer now, with a promised correction
"""
