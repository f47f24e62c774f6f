"""The device's budgets for escalations, and the spending so far.

Files
    spending        decides which escalations are worth their price, pays for them, and stores what was spent
    from_settings   builds budgets, tariffs and sensors from the settings

The arithmetic of prices is in `firstline_core.routing`: `account` and `budget`.
"""
