"""Requests whose caller does not wait: kept in the store, run when there is room, answered when they are asked for."""
