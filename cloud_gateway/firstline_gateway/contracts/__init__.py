"""Whether each bundle's contract still holds: the audits of all devices, pooled; and how much an alarm may escalate."""
