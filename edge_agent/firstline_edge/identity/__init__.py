"""The identity of this device: its certificate, how it came by it and gets the next one, and what time it is."""
