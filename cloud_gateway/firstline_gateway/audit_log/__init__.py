"""The audit log of decisions about the fleet: entries are added, and never changed or removed.

Modules
    audit_log       pages of the log, and its signed head
    records         entries in the store, added in the transaction that they describe
    tables          the tables
"""
