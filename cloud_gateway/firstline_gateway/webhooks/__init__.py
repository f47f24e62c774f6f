"""Webhooks: the entries of the audit log that other services want, sent signed and retried.

The audit log is the queue. A change, its entry and therefore its message are one transaction. Each webhook has a
position in the log, so that a message that was not delivered before a restart is sent after it.
"""
