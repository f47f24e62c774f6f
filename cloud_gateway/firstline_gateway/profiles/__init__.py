"""What models cost on machines: profiles that devices and people upload, and requests that ask devices for them.

Modules
    tables           the tables
    records          profiles in the store, within a caller's transaction
    uploaded         a document that is uploaded as a profile
    profiles         what devices and people ask of the profiles
    priors           profiles of this gateway's own hardware
    request_records  profile requests in the store, within a caller's transaction
    requests         asks devices to measure until they have or the request expires
    permission       which profile a device may upload
    request_state    how a request stands, for people; pure
"""
