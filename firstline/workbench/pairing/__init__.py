"""From two model files to a certified bundle, see `pair.py`.

specification     files, labels and choices of the user
sources           opens the data: finds the labels, and cuts series into windows
surroundings      properties of the data and of files near the models
labels            the labels of the bundle, and how each model's own classes become them
settling          makes the choices that the files leave open, by data or by a person
contact_sheet     pictures from which a person chooses
operating         operating scores, thresholds and the tolerance
agreement         refuses an edge model that does not fit its full model
recipe            writes the recipe
pair              all of it, in order, up to the bundle
certifying        certifies the edge model
report            share at the edge, bytes, latency, quality and pictures of disagreements
"""
