"""What one thing costs, and what a fleet needs by that: docs/scale.md."""
