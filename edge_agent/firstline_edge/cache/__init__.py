"""What models computed for rows, so that equal rows are computed once.

Modules
    results         the results, in memory and on disk
    disk            the part on disk: sealed, bounded, written in the background
    metrics         entries and bytes in memory
    bytes_disk      how diskcache stores entries: bytes only, never unpickled
"""
