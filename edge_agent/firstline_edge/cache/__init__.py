"""The outputs of models for rows, so that equal rows are computed once: in memory, and on disk."""
