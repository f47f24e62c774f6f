"""Errors as gRPC statuses: the table from errors to statuses, and the trailing metadata."""

from __future__ import annotations

from grpc import StatusCode

from firstline_core import errors
from firstline_core.errors import FirstlineError

CODE = "firstline-code"
"""Trailing metadata: the error's code, as in a REST body."""
RETRY_AFTER_MS = "grpc-retry-pushback-ms"
"""Trailing metadata: time until a retry; gRPC clients that retry respect it (gRFC A6)."""
REQUEST_ID = "firstline-request-id"

# A class without an entry has its parent's.
_STATUS: dict[type[FirstlineError], StatusCode] = {
    errors.RequestError: StatusCode.INVALID_ARGUMENT,
    errors.UnauthorizedError: StatusCode.UNAUTHENTICATED,
    errors.ForbiddenError: StatusCode.PERMISSION_DENIED,
    errors.UnknownModelError: StatusCode.NOT_FOUND,
    errors.UnknownAnswerError: StatusCode.NOT_FOUND,
    errors.ModelMismatchError: StatusCode.FAILED_PRECONDITION,
    errors.ReusedRequestIdError: StatusCode.ALREADY_EXISTS,
    errors.PayloadTooLargeError: StatusCode.RESOURCE_EXHAUSTED,  # as gRPC itself for a message over its limit
    errors.RateLimitedError: StatusCode.RESOURCE_EXHAUSTED,
    errors.CapacityError: StatusCode.UNAVAILABLE,
    errors.LinkError: StatusCode.UNAVAILABLE,
    errors.DeadlineExceededError: StatusCode.DEADLINE_EXCEEDED,
    errors.RemoteTimeoutError: StatusCode.DEADLINE_EXCEEDED,
    FirstlineError: StatusCode.INTERNAL,
}


def status_of(error: FirstlineError) -> StatusCode:
    """Returns the gRPC status of an error."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def trailers_of(error: FirstlineError) -> tuple[tuple[str, str], ...]:
    """Returns the trailing metadata of an error."""
    found = [(CODE, error.code)]
    if error.retry_after_s is not None:
        found.append((RETRY_AFTER_MS, str(max(1, round(min(error.retry_after_s, 86_400.0) * 1000)))))
    if error.request_id:
        found.append((REQUEST_ID, error.request_id))
    return tuple(found)
