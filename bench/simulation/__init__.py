"""Simulated time, and a simulated fleet on it, in which both tiers' own code runs."""
