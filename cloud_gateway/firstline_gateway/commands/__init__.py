"""The commands of `firstline-gateway`."""
