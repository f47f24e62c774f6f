"""The identity of this device: its certificate, how it gets the first and the next one, and the time to judge them by.

Files
    credentials     the certificate and the authorities in a running agent
    enrolment       gets the first and the next certificate from the gateway
    renewal         renews the certificate in time
    files           the identity on disk
    tls             TLS contexts that judge certificates by the time floor
    time_floor      the time on a device whose clock may be wrong
"""
