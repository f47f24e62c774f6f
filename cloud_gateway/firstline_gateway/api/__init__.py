"""The gateway's API: requests for inference (plain ASGI), the control plane (FastAPI), and gRPC.

Modules
    infer        inference over HTTP, before the control plane
    overload     refuses requests unread while too many come
    jobs         requests that are answered later
    grpc         gRPC, with the callers and limits of REST
    app          the control plane, made of the routers below
    services     the services that routes use, and the dependencies that provide them
    auth         from a certificate or a key to a principal and its scopes
    persons      what a person who signed in to a console may see and change
    messages     reads bodies and parameters, and builds responses
    errors       answers every failure in JSON
    models       health, metadata and repository of the V2 protocol
    monitoring   metrics, executors, store and webhooks
    contracts    the audits of all devices by contract
    enrolment    identities of devices
    fleet        devices, registry, rollouts, profiles and the audit log
"""
