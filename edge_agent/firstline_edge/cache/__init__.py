"""What models said of rows, so that nobody asks them twice.

Rooms
    keys            what a row, and a question about it, is known by
    results         what was said, in memory and on disk
    disk            the part on disk: sealed, bounded, and never missed
    database        its SQLite file, and what reads it
    writer          what writes it: one thread, and groups that share a commit
    outdated        what it still holds, and may tell no longer
    key_filter      keys that the file cannot hold are not asked for
"""
