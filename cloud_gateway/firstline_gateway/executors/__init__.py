"""Where batches run: one interface, one file for each engine."""
