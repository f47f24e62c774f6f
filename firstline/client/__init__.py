"""The Python client of the REST API: `Client`, `AsyncClient`, and the requests and answers that they share.

Modules
    sync_client    `Client`
    async_client   `AsyncClient`
    calls          each call as two pure functions: build the request, read the response
    connection     address, token, TLS, and httpx's errors as those of Firstline
    retries        which calls are repeated, and when
    infer_many     many requests, bounded in flight
    results        typed answers, one class for each task
"""
