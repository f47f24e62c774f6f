"""Several edge variants of one bundle, held at once: which of them answers, and which of them are loaded.

    variants    those of one bundle, as the rungs of a ladder, and the choice of one for a request
    chooser     what is left of a request's deadline, for that choice
    loading     from a bundle to its ladder on this device
    room        steps the controllers with what the sensors say; loads and unloads; tells of every switch

The rules are `firstline_core.adaptation`'s. Where it is switched off, or a bundle has one variant, nothing of this is
looked at but one attribute of the model that a request found.
"""
