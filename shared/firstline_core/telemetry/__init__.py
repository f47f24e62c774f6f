"""What the tiers say of themselves: logs, metrics, traces, the decision log. Never a payload, never a secret."""
