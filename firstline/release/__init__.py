"""Signing and publishing: keys, TUF metadata, and bundles and configurations in a gateway's registry.

Modules
    roles       root and targets metadata: create, change, sign; no I/O
    keyring     a folder of keys and the metadata that they have signed
    publishing  uploads and signs for bundles and configurations, and makes the metadata current
    pulling     downloads bundles and configurations as a device does: verified
"""
