"""Tasks: the outputs of a model and what they must satisfy.

Modules
    classification      one probability per label
    detection           boxes with classes and scores
"""
