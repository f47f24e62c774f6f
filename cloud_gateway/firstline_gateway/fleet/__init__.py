"""The devices that this gateway looks after: what each shall run, what it runs, and how it does.

All of it, and what else looks after a fleet
    wiring          put together from the settings

Rules, pure functions without I/O
    selector        devices by what they are tagged with

What is asked
    fleet           by devices and by people, whichever way they come
    broker          over MQTT: what devices publish, and what they are to run

What is kept
    tables          where
    devices         who is here, what each is to run and what it says of itself
    counting        what devices counted, added up over their processes
    tiers           who answered, of all devices together, over time
"""
