"""The client of the gateway: asks the full model, over whichever link works."""
