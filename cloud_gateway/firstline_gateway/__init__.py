"""The cloud gateway: runs the full models for devices and applications, over HTTP and MQTT.

One request, from the outside in
    api/            HTTP: the Open Inference Protocol, the short way in, the operators' routes
    mqtt            the same requests over MQTT, shared with other gateways
    principals      who asks, as the transports name them
    checks          whether a request makes sense for a model, without its numbers
    dataplane       one request, whichever transport brought it: resolve, check, batch, answer
    jobs/           requests that are answered later
    deliveries/     requests that keep a device's promise, each of which takes effect once
    scheduling/     who comes in, and who runs when
    response_cache  answers that were given before
    executors/      where batches run
    counting        answers, counted a moment later
    journal         one log line and one count for each request

What it knows
    models_folder   the bundles in a folder: found, read, loaded
    repository      the models served, by name and version
    residency/      which of them are in memory, within a budget
    fleet/          the devices, what each shall run and does
    rollouts/       how a model comes to a fleet, and whether it does worse there
    contracts/      whether each bundle's contract still holds, by the audits of all devices
    identity/       who may call: certificates, enrolment, revocation, API keys
    registry/       bundles' files and the signed metadata that devices believe
    full_models/    those that the fleet needs, fetched from the registry and retired
    trail/          who decided what about the fleet, for good
    broker/         the files of a Mosquitto, and how revoked devices leave it
    statistics      how often, and how long, each model ran
    store/          the database that all of this is kept in
    backup/         the database and the certificate authority in one file

The process
    commands/       the commands of `firstline-gateway`, beside `run`, `check` and `status`
    settings        what can be set, section by section
    settings_load   from one TOML file, variables and flags
    settings_check  do they make sense together?
    cores           how many this process may use
    gateway         all parts, put together from the settings
    server          the HTTP server: binds, announces itself, ends without dropping a request
    metrics         what is counted beside the requests
"""

__version__ = "0.1.0"
