"""Runtimes of models, the times of their batches, and the process that runs them: its priority, memory and threads."""
