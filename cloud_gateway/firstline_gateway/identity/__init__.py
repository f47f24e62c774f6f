"""Identities of callers: the gateway's certificate authority, enrolment, revocation, and API keys.

Modules
    identity            puts the parts together from the settings
    gatekeeper          authenticates certificates and API keys against the credentials in memory
    credentials         these credentials, and the changes in the store that update them
    devices             invites, enrols, renews, revokes and lists devices
    enrolment           the same in the store, one transaction each
    keys                API keys in the store
    tables              the tables, and the numbers of their changes
    authorities         the files of the authorities and of revoked certificates; the server's certificate
    ca                  X.509 without files: authorities, certificates, lists of revoked certificates
    client_certificate  a client's certificate, from TLS or from a trusted proxy
    tls                 the gateway's TLS context, whose files may be replaced
    audit_head          the audit log as the API shows it, and its signed head
    principals          the names and permissions of callers
"""
