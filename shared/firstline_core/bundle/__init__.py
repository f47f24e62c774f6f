"""Bundles: model, processing, score and threshold as one thing that is hashed, checked and rolled out together."""
