"""Promised corrections: requests that wait on the disk for the gateway, and their answers.

Modules
    corrections     stores promises, delivers them, announces their answers
    outbox          promises and answers in one SQLite file
    reopening       an outbox whose disk may refuse, which is opened again later
    item            a promise, and its sealed form on disk
    promises        the table of promises
    answers         the table of answers
    database        the file: schema, transactions, damage
    recovery        what becomes of a damaged file
    reader          reads promises and answers back
    timeline        ages on a device whose wall clock cannot be trusted
    restamping      corrects stored times after the wall clock was set ahead
    completions     callers that wait for a promise to end
    delivery        sends promises to the gateway
    corrector       asks the gateway for one correction
    retries         which promises may be sent now
    rate            how fast promises are sent
    announcer       tells local applications of corrections over MQTT
    metrics         promises that wait, and their bytes
"""
