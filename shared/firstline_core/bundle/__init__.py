"""Bundles: model, processing, score and threshold as one unit that is hashed, verified and rolled out together.

Modules
    manifest      the declaration: models, score, threshold, digests, and whether a certificate is valid
    store         opens the folder of a bundle, and verifies its files
    loading       loads models and score with their processing
    loaded_model  a model that is ready to run, and the checks of the inputs of requests
    row_check     whether a model's answer to a row depends on other rows
    golden        answers that a device must reproduce
    trust         verifies signed metadata
    trust_http    fetches signed metadata over HTTP
"""
