"""The device agent: answers with its own model if that is safe, and asks the gateway otherwise.

A request
    api/            HTTP and gRPC: the Open Inference Protocol, files, answers by id and as events
    cascade/        decides which tier answers, read from top to bottom
    requests/       the context of a request and its rows; counters and the decision log
    cloud/          the connections to the gateway over HTTP and MQTT, each with a circuit breaker

What it uses
    models/         the models on this device: loading, measuring, reloading
    adaptation/     chooses between the variants of a bundle by heat, memory, battery and time left
    cache/          model outputs by input digest, in memory and on disk
    audits/         random checks of edge answers by the full model, alarms, drift
    budgets/        limits on traffic, energy and money
    outbox/         promised corrections on disk, and their delivery
    hardware/       the hardware catalogue and the sensor readings
    identity/       the device certificate: enrolment and renewal

The fleet
    fleet/          the device twin, updates and remote configuration
    profiling/      measures bundles on request of the fleet

The process
    cli/            the commands of `edge-agent`
    settings/       the settings of the device
    telemetry/      background tasks, traffic of the links, the version
    state           the state directory
    app             builds, starts and stops everything
"""
