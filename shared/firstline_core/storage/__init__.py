"""Keeping things on a disk that may lose power, fill up or rot. Knows nothing of what is kept."""
