"""Loads and unloads the edge variants of a bundle, and chooses which one answers.

    variants    the choice of a variant for a request; `models.models.BundleVariants` holds them
    loading     builds the ladder of a bundle on this device; limits and timing from the settings
    switching   updates the controllers with sensor readings, loads and unloads variants, reports switches

The rules are in `firstline_core.adaptation`. If adaptation is disabled, or a bundle has one variant, a request checks
one attribute of its model and nothing else.
"""
