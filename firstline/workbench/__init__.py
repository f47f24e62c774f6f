"""The workbench: makes bundles from anyone's model files, and measures them on anyone's data."""
