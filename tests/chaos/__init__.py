"""What breaks things on purpose: a TCP proxy, a deterministic simulation, and campaigns against real processes."""
