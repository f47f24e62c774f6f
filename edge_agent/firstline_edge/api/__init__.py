"""The API of the agent: HTTP as a plain ASGI application, and gRPC.

Modules
    server       sockets, start and graceful stop of both
    app          the ASGI application: routes, and handlers from requests to replies
    access       authenticates callers
    data_plane   answers requests of every protocol, also of a program in the same process
    operations   status, metrics and rollbacks for operators
    streams      event streams: the present answer, then the final one
    openapi      describes the endpoints
    grpc         gRPC, with the callers and limits of REST
"""
