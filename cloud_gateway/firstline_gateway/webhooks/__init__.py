"""Webhooks: events that other services want, sent signed and retried.

The audit log is a queue of events. A change, its entry and therefore its message are one transaction. The promises that
have ended on devices are a second queue. Each webhook has a position in each of its queues, so that a message that was
not delivered before a restart is sent after it.
"""
