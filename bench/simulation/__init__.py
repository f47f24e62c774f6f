"""Simulated time, a simulated network and a simulated core, on which both tiers' own code runs."""
