"""Cuts a full model in two and measures the cuts; the document is in `firstline_core.planning.split`.

    graphs          places that only one tensor crosses, and the two models of a cut
    checkpoint      the tensor that crosses, in bytes
    measure         measures the cuts

Split models are measured, not run (docs/adr/0037).
"""
