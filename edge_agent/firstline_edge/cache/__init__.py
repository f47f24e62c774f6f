"""The outputs of models for rows, so that equal rows are computed once.

Files
    results     the results in memory, in front of those on disk
    disk_cache  the results on disk
"""
