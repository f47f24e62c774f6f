"""The device: answers what its own model can be trusted with, and asks the gateway about the rest.

One request, from the outside in
    api/            REST: the Open Inference Protocol, the short way in, answers by id and as events
    agent           the data plane, whichever way a request comes in
    cascade         one request, read top to bottom
    at_once         the same for the commonest request, which waits for nothing
    case            a request on its way, and how far it came
    rows            each is decided by itself; together they are the answer
    runner          asks this device's own model
    judge           keeps its answer of a row, or escalates it
    router          by policy, certificate, and what audits found
    gateway         asks the full model
    hedge           asks it early, where one after the other would be too late
    provisional     the edge answer for now, with the promise of a correction

What it rests on
    models/         those that this device holds: opened, measured, copied, reloaded
    adaptation/     several variants of a bundle: who answers by heat, memory, battery and time left
    memory          what models leave behind goes back to the system
    cache/          what models said of rows, in memory and on disk
    scheduling/     who begins next, on which thread, and for how long it is waited for
    punctuality     can the full model's answer be expected in time?
    escalation      what crosses the link, and what is accepted of what comes back
    complaints      what the gateway says against a model
    cloud/          to the gateway, over HTTP and MQTT: one after the other, each with its breaker
    identity/       this device's certificate, how it joined and renews, and what time it is
    outbox/         promises of corrections, on disk, and how they are kept
    fleet/          one of a fleet: its twin, its counts, its brake
    updater/        models from the fleet: tried, and kept or undone
    configuration/  settings from the fleet, likewise
    profiling/      bundles are measured where the fleet asks for it
    audits/         the contract in the field: checks of kept answers, alarms, drift
    budgets/        what may be spent, and what was
    hardware/       what this device is, and how it is: sensors, read beside the requests

The process
    cli/            the commands of `edge-agent`
    settings/       what can be set on the device
    telemetry/      what it tells: counters, log lines, the decision log, how it is
    tokens          who may call
    state           the state directory, and where each thing lies in it
    purge           erases what was kept
    wiring          single parts, each from its section of the settings
    parts           all of them, opened in order and closed in the reverse
    background      what works beside the requests, and what is told where it ends
"""
