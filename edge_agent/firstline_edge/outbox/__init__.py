"""Promised corrections: requests that wait on the disk for the gateway, and their answers.

Modules
    outbox              promises and answers in one SQLite file, and the callers that wait for an answer
    reopening           an outbox whose disk may refuse, which is opened again later; its metrics
    item                a promise, and its sealed form on disk
    tables              the tables of promises and answers
    database            the file: schema, transactions, damage, the newest acknowledged records
    recovery            replaces a damaged file, and reports lost records
    timeline            ages on a device whose wall clock cannot be trusted, and the correction of stored times
    delivery            sends promises to the gateway, and has their answers announced
    correction_client   asks the full model for a correction, and decides which failures end a promise
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
