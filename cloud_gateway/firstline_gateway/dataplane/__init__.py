"""One request, whichever transport brought it.

Rooms
    dataplane       resolve, check, batch, answer
    checks          whether a request makes sense for a model, without its numbers
    response_cache  answers that were given before
"""
