"""The cloud gateway: runs the full models for devices and applications, over HTTP and MQTT.

The packages, from the highest layer to the lowest; a package imports only packages below it.

Process
    commands/       the commands of `firstline-gateway`
    app             builds every part from the settings, and starts and stops them in order
    checks          the models folder, and the other files and services that the settings name
    tables          the tables of all packages, with which the store is opened

Transports
    api/            HTTP: the Open Inference Protocol, jobs, and the operators' routes
    mqtt            inference over MQTT, shared with other gateways

Fleet
    webhooks/       signed messages to other services about alarms, rollouts and enrolments
    rollouts/       brings models and configurations to devices in stages, and judges them
    profiles/       what models cost on machines
    contracts/      whether each bundle's contract still holds, by the audits of all devices
    fleet/          the devices: their desired and reported state
    registry/       bundles' files, and the signed metadata that devices trust

Inference
    jobs/           requests that are answered later
    serving/        the path of one request: check, batch, run, answer; and deliveries that take effect once
    executors/      where batches run
    models/         the models that are served, which of them are in memory, and where they come from

Foundations
    broker/         the files of a Mosquitto broker, and how revoked devices leave it
    identity/       who may call: certificates, enrolment, revocation, API keys
    audit_log       who decided what about the fleet
    store/          the database
    telemetry/      the log line of each request, and metrics
    settings/       the settings: read and checked
    background      work that repeats for as long as the process runs
"""

__version__ = "0.1.0"
