"""Deliveries: requests that a device repeats until they are answered, each of which takes effect once."""
