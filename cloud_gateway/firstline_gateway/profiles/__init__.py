"""What bundles' models cost on machines: profiles that devices and people brought, and the devices that are asked.

Profiles
    tables          where they and the requests are kept
    records         in the store, within a caller's transaction
    brought         what is sent as one
    profiles        what devices and people ask of them
    priors          what they say of this gateway's own hardware

Requests
    asked           in the store, within a caller's transaction
    requests        devices are asked to measure, until they have or the time is over
    permission      what a device may bring by them
    standing        how far a device is with that, for people
    keeper          ends what nobody fulfilled in time
"""
