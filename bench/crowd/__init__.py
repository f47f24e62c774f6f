"""Many devices' part of a fleet over a real broker, before one real gateway: `make heartbeats`.

devices         stands for them: they come, count, hear what they are to run, and say how that went
measure         a gateway, a broker and a crowd, and what it takes them
table           what was found, and how it grows
"""
