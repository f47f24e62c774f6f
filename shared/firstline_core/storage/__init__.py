"""Durable files, seals and group commits for a disk that may lose power, fill up or damage data."""
