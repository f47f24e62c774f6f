"""Execution of batches: `base.py` is the interface, `factory.py` opens the configured executors.

`local.py` runs models in this process, `oip/` on servers that speak V2, `ray/` on a Ray cluster. `dispatch/` places
each batch on one of several executors.
"""
