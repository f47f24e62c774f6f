"""What the tiers say of themselves: logs, metrics, the decision log. Never a payload, never a secret."""
