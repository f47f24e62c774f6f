"""The gateway's backup: its store and its certificate authority in one file, written while it runs, and restored.

Modules
    command     `backup` and `restore`
    backup      backs up into an archive, and restores where nothing is overwritten
"""
