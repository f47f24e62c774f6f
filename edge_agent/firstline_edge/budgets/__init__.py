"""The device's budgets: what it may spend on asking the full model, and what it has spent.

    spending        what is worth its price, and what is paid; for the whole device
    ledgers         what was spent, on disk
    sensors         battery and heat, which make things dearer, of what the sensors said
    wiring          from the settings to one `Spending`

Prices and verdicts are pure and `firstline_core.routing`'s: `account`, `budget`, `demand`, `tariff`, `conditions`.
"""
