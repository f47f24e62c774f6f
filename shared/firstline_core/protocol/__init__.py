"""The protocols of both tiers: the Open Inference Protocol V2 over HTTP, gRPC and MQTT, and the enrolment of devices.

V2 messages
    oip              requests and responses, with tensors in JSON or as binary data
    tensors          one tensor in each of the two forms
    outputs          requested outputs, and classes as strings
    parameters       parameters of requests
    answer           the answer's metadata as parameters of a response
    limits           limits of one message
    data_plane       the interface of a tier to its transports
    extensions       Triton's repository, model configuration and statistics
    file_inference   inference by file, for callers without tensors
    file_body        bodies of files, forms and JSON as tensors

HTTP
    http             errors and statuses, headers, bodies and replies, independent of a web framework
    http_server      the server of both tiers, on uvicorn
    sockets          bound addresses, and the errors of those that cannot be had
    cors             calls from web pages of listed origins
    asgi             requests, their arrival and sender, and replies of an ASGI application
    openapi          descriptions of routes
    http_client      every httpx client
    http_transport   connections of these clients: keepalive, Happy Eyeballs, and closing of idle ones
    proxies          the proxy that the environment names for a server
    loopback         hosts that are reached from this machine only
    happy_eyeballs   blocking TCP connections to names with several addresses

gRPC
    grpc             messages, service and server
    protobuf         fields of messages without copies, and compiled declarations, also for ONNX files

MQTT
    mqtt_messages    topics, requests and answers, settings and errors
    mqtt_connection  one connection, on paho
    mqtt             a client that stays connected

Others
    tls              the context of a client that verifies its server
    enrolment        join tokens, enrolment requests, and names in certificates
    backoff          random delays between retries
    settings_sections  sections of the settings that both tiers have
"""
