"""The cloud gateway: runs the full models for devices and applications, over HTTP and MQTT.

One request, from the outside in
    api/            HTTP: the Open Inference Protocol, the short way in, the operators' routes
    mqtt            the same requests over MQTT, shared with other gateways
    serving/        one request over any transport: check, admit, batch, execute, answer
    jobs/           requests that are answered later
    executors/      where batches run

What it knows
    models/         the models served, which of them are in memory, and where they come from
    fleet/          the devices, what each shall run and does
    rollouts/       how a model comes to a fleet, and whether it does worse there
    profiles/       what bundles' models cost on machines
    contracts/      whether each bundle's contract still holds, by the audits of all devices
    identity/       who may call: certificates, enrolment, revocation, API keys
    registry/       bundles' files and the signed metadata that devices believe
    trail/          who decided what about the fleet, for good
    broker/         the files of a Mosquitto, and how revoked devices leave it
    store/          the database that all of this is kept in
    backup/         the database and the certificate authority in one file

The process
    commands/       the commands of `firstline-gateway`, beside `run`, `check` and `status`
    background      work that repeats for as long as the process runs
    settings/       what can be set, read and checked
    opening         from settings to a gateway: what they name is tried, the models are read
    gateway         all parts: put together, started, drained, closed
    server          the HTTP server: binds, announces itself, ends without dropping a request
    telemetry/      what it tells of itself: the log's line of each request, counts and metrics
"""

__version__ = "0.1.0"
