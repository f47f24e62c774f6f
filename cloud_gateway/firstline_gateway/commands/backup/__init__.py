"""The gateway's backup: its store and its certificate authority in one file, written while it runs, and restored.

Modules
    command     `backup` and `restore`
    backup      backs up, and restores where nothing is overwritten
    archive     the file: a ZIP archive with a manifest of digests
    tables      tables as lines of JSON, the same for SQLite and PostgreSQL
"""
