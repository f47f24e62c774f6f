"""Who this device is to its gateway: its certificate, how it came by it and gets the next one, and what time it is."""
