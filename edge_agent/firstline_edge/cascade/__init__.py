"""Decides for each request which tier answers: the edge model, the cache or the full model.

Files
    cascade         one request, read from top to bottom; the runs of the edge model, and the decision about each row
    escalation      asks the full model, or gives the edge answer now with a promised correction
    hedging         asks the full model early if asking it after the edge model would be too late
"""
