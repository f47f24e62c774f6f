"""What a fleet may run is decided here: keys, the metadata that they sign, and what goes to a gateway's registry.

Rooms
    keyfile         a private key in a file of its own
    roles           root and targets metadata: made, changed, signed; no I/O
    keyring         a folder of keys and the metadata that they have signed
    listing         a bundle among the targets
    registry        a gateway's registry over REST
    publishing      what is signed, made current there
    pushing         a bundle's files, sent where they are missing, and signed for
    configurations  settings of agents, sent, signed for and read
    pulling         a bundle fetched as a device would: verified, resumed
"""
