"""What every transport asks of the gateway.

Rooms
    dataplane       how the gateway and its models are, and what they take
    answering       the course of one request: resolve, check, batch, answer
    checks          whether a request makes sense for a model, without its numbers
    response_cache  answers that were given before
"""
