"""Bundles: model, processing, score and threshold as one unit that is hashed, verified and rolled out together."""
