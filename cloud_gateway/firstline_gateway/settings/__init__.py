"""The operator's settings.

Modules
    settings        all settings, section by section
    load            reads them from one TOML file, variables and flags, and checks them together
"""
