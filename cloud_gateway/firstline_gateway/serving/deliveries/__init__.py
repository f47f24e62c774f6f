"""Requests that keep a device's promise: each takes effect once, however often it is sent."""
