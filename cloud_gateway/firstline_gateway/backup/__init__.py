"""The gateway's memory in one file: its store and its certificate authority, backed up while it runs, and restored."""
