"""Who runs when: admission (may it come in?), the order of what waits, and the batches that are made of it."""
