"""Promised corrections: requests that wait on the disk for the gateway, and their answers.

Modules
    outbox              promises and answers, and the callers that wait for an answer; opened again if the disk refuses
    item                a promise, and its sealed form on disk
    database            the file: schema, rows, transactions, damage, the newest acknowledged records
    recovery            replaces a damaged file, and reports lost records
    timeline            ages on a device whose wall clock cannot be trusted
    delivery            has the gateway correct promises, and ends those that it will not correct
    pacing              which promises may be sent now, and how fast
    announcer           announces corrections to local applications over MQTT, and to the fleet

Terms
    seal            checksum or encryption around a record, which shows whether its content was changed
                    (`firstline_core.storage.seals`)
    mark            high-water mark: the numbers of the newest acknowledged records, in a small file outside the
                    database; after a crash it shows whether acknowledged records are missing
    set aside       rename a damaged file (suffix `.damaged`), so that a new one replaces it and an operator can still
                    examine it
"""
