"""The device's budgets: what it may spend on asking the full model, and what it has spent.

Files
    spending        decides which escalations are worth their price, and pays for them
    ledgers         what was spent, on disk
    sensors         battery and temperature, which raise prices
    from_settings   builds budgets, tariffs and spending from the settings
    metrics         what was spent, what is left, and prices

The arithmetic of prices is in `firstline_core.routing`: `account`, `budget`, `demand`, `tariff`, `conditions`.
"""
