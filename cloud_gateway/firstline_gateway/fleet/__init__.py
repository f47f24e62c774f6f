"""The devices that this gateway manages: their desired and reported state, and their statistics.

Modules
    fleet           the requests of devices and people, over every transport
    broker          the fleet over MQTT: reads reports, publishes desired documents
    devices         devices in the store: desired and reported documents, tags
    totals          the counts of devices, added up over their processes
    overview        the state of all devices at one moment, added up
    gauges          metrics of all devices together
    alarms          the alarms that devices raised by their own audits
    answers         promises that have ended on devices, for webhooks
    tiers           the answers by tier, for all devices together, over time
"""
