"""The devices that this gateway manages: what each is to run, what it runs, and how it does.

Modules
    selector        selects devices by their tags; pure
    fleet           what devices and people ask, over every transport
    broker          the fleet over MQTT: what devices publish, and what they are to run
    tables          the tables
    devices         devices in the store: desired and reported documents, tags
    totals          what devices counted, added up over their processes
    tiers           which tier answered, for all devices together, over time
"""
