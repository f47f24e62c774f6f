"""The device's budgets: what it may spend on asking the full model, and what it has spent.

Files
    spending        decides which escalations are worth their price, pays for them, and stores what was spent
    from_settings   builds budgets, tariffs and sensors from the settings

The arithmetic of prices is in `firstline_core.routing`: `account` and `budget`.
"""
