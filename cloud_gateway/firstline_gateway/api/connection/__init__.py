"""A connection, from its first byte to what answers on it.

It comes in
    door                who has connected and asked nothing yet; TLS handshakes
    http_protocol       uvicorn's HTTP/1.1 with bounds, and refusals in JSON
    inference_protocol  the same, with requests for inference taken past ASGI

A request for inference on it
    heads               what its head says, known by its bytes
    unread              whether it is refused from its head
    lag                 how far behind the event loop is, which decides that too
    cycle               it and its reply, as the connection sees them
    courses             what those like it came to, so that nothing of it is found out again
    fast_path           begun by that, where nothing has to be waited for
    fast_exchange       and answered by it
    exchange            carried to `infer.answer`: everything else
"""
