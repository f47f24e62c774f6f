"""The device: answers what its own model can be trusted with, and asks the gateway about the rest.

One request, from the outside in
    api/            REST: the Open Inference Protocol, the short way in, answers by id and as events
    agent           the data plane, whichever way a request comes in
    turns           who begins next, while many come at once
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
    models          those that this device holds, and what they say of rows
    models_load     bundles opened, edge variants loaded
    model_timing    measures them: a meaningless input, and the time that a row takes
    bundle_copies   of bundles that worked, for when the files are damaged
    reloading       models come and go at an operator's word
    workers         threads for runs that would hold up the event loop
    cache           what models said of rows, in memory
    disk_cache      the same, on disk
    cache_database  its SQLite file, whose puts share a commit
    key_filter      keys that the file cannot hold are not asked for
    keys            what a row, and a question about it, is known by
    single_flight   what is asked twice at a time is done once
    deadline        waits no longer than that
    punctuality     can the full model's answer be expected in time?
    escalation      what crosses the link, and what is accepted of what comes back
    complaints      what the gateway says against a model
    counted         how often, and how long, each model answered
    links/          to the gateway, over HTTP and MQTT: one after the other, each with its breaker
    identity/       this device's certificate, how it joined and renews, and what time it is
    outbox/         promises of corrections, on disk, and how they are kept
    fleet/          one of a fleet: its twin, its counts, its brake
    updater/        models from the fleet: tried, and kept or undone
    configuration/  settings from the fleet, likewise
    audits/         the contract in the field: checks of kept answers, alarms, drift
    budgets/        what may be spent, and what was

What is told
    recorder        of each answer: counters, log lines, the decision log
    report          of the agent: status, the birth message, gauges

The process
    cli/            the commands of `edge-agent`
    settings        what can be set, section by section
    settings_load   from one TOML file, variables and flags
    settings_check  do they make sense together?
    last_good       the configuration to start with where the file is broken
    tokens          who may call
    state           the state directory, and where each thing lies in it
    purge           erases what was kept
    wiring          single parts, each from its section of the settings
    parts           all of them, opened in order and closed in the reverse
"""
