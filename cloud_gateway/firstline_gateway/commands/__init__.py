"""The commands of `firstline-gateway`, beside `run`, `check` and `status`."""
