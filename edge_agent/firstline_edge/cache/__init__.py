"""The outputs of models for rows, so that equal rows are computed once.

Files
    results     the results in memory, and on disk
    key_filter  which keys are certainly not on disk
"""
