"""The accuracy contract in the field: the full model checks a sample of the edge answers."""
