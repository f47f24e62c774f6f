"""The path of one request, whichever transport brought it.

Modules
    data_plane      the state and metadata of the gateway's models, inference and its counts, for every transport
    response_cache  answers of earlier requests
    request_digest  the digest by which a repeated request is recognised
    scheduling/     admission, batches and their order
    deliveries/     requests that a device repeats until they are answered, each of which takes effect once
"""
