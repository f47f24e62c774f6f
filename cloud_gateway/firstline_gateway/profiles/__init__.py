"""What bundles' models cost on machines: profiles that devices and people brought, and the devices that are asked.

Profiles
    tables          where they are kept
    records         in the store, within a caller's transaction
    profiles        what devices and people ask of them
    priors          what they say of this gateway's own hardware

Requests
    requests        devices are asked to measure
    standing        how far a device is with that, for people
"""
