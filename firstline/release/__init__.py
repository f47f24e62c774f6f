"""Signing and publishing: keys, TUF metadata, and bundles and configurations in a gateway's registry.

Modules
    keyfile         a private key in its own file
    roles           root and targets metadata: create, change, sign; no I/O
    keyring         a folder of keys and the metadata that they have signed
    listing         the target files of a bundle
    registry        the REST client of a gateway's registry
    publishing      makes signed metadata current in a registry
    pushing         uploads a bundle's missing files and signs for it
    configurations  uploads, signs for and reads configurations of agents
    pulling         downloads a bundle as a device does: verified and resumable
"""
