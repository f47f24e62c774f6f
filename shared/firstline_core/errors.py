"""The tree of errors. `protocol/http.py` maps them to status codes.

    FirstlineError
    ├── RequestError              the caller must fix it; never retried
    │   ├── InvalidTensorError        an invalid tensor, image or body
    │   ├── UnknownModelError         no such model or version here
    │   ├── UnknownAnswerError        no answer under this id for this principal
    │   ├── NotFoundError             no such object in the fleet's API
    │   ├── ConflictError             changed or in use meanwhile: read again, then repeat
    │   ├── ModelMismatchError        the tiers do not run the same bundle
    │   ├── ReusedRequestIdError      a different request with a used id
    │   ├── NotAcceptableError        `Accept` names only types that the route does not return
    │   ├── PayloadTooLargeError      over a limit that the message names
    │   ├── UnauthorizedError         no valid token
    │   └── ForbiddenError            a valid token without this permission
    ├── CapacityError             retry later, after `retry_after_s`
    │   ├── QueueFullError
    │   ├── DeadlineExceededError
    │   ├── SheddingError             too hot or too little memory, and no other tier can answer
    │   ├── RateLimitedError          too many requests of this caller
    │   ├── BudgetExceededError       the budget of this hour or day is used up
    │   ├── StoreUnavailableError     the database is unreachable, full or read-only
    │   ├── EngineUnavailableError    no executor for the model is reachable
    │   └── NotReadyError             starting, draining, or the model is not loaded
    ├── LinkError                 between the tiers
    │   ├── LinkDownError
    │   ├── RemoteTimeoutError
    │   └── ProtocolError             the answer violates the protocol
    ├── RuntimeFailure            a model does not load or run
    │   ├── ModelLoadError
    │   └── InferenceError
    ├── UpdateError               a bundle that must not be used
    │   ├── IntegrityError            bytes differ from the manifest's sha256, or are not metadata
    │   ├── SignatureError            metadata without the required signatures
    │   ├── MetadataRollbackError     metadata older than seen before
    │   ├── MetadataExpiredError      expired metadata: newer metadata may be held back
    │   ├── MetadataMismatchError     genuine metadata of different moments
    │   ├── IncompatibleTargetError   this device can run no variant of the bundle
    │   ├── SelfTestError             a bundle whose golden answers differ on this device
    │   └── NoRoomError               no room for the bundle on this device or in the registry
    └── ConfigError               an invalid setting, with file and line
        └── TaskError                 a task that cannot be found or loaded here

Adapters translate foreign exceptions once, with `raise ... from`. Only a process's outermost loops catch
`Exception`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from itertools import islice
from typing import ClassVar

from firstline_core.ids import new_request_id

NAME_RULE = "1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit"
"""What `types.Name` accepts, for messages."""
NAME_CHARACTERS = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# Limits of a search for a similar name.
_SEEN = 1000  # names
_COMPARED = 25  # names of them
_COMPARED_CHARACTERS = 64
_LONG = 32  # characters; of longer names one is compared, because difflib takes milliseconds for each
_MISSING = 4  # characters of a longer name
_LISTED = 8  # names that a message with a suggestion lists too
_OWN_PACKAGES = ("firstline", "firstline_core", "firstline_edge", "firstline_gateway")


class FirstlineError(Exception):
    """An error with a sentence for people and a code for programs.

    Attributes:
        code: stable, lower_snake_case; part of the wire format.
        retryable: whether the same call may succeed later, unchanged.
        message: one sentence that says what was wrong, where, and what to do.
        public: the message for callers of a server; without what only the server's operator may know.
        retry_after_s: seconds after which a retry makes sense, if known.
        request_id: of the failed request; "" if it was not read yet, see `identify`.
        key: the part at fault of the object that the error is about, such as "preprocess" of a model; see `about`.
    """

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: str = "") -> None:
        """Gives a subclass its code; without one it has its parent's."""
        if code:
            cls.code = code
            BY_CODE[code] = cls

    def __init__(self, message: str, *, retry_after_s: float | None = None, public: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.public = public or message
        self.retry_after_s = retry_after_s
        self.request_id = ""
        self.key = ""

    def identify(self) -> str:
        """Returns the id under which the error is answered and logged; makes one if the request has none."""
        self.request_id = self.request_id or new_request_id()
        return self.request_id


BY_CODE: dict[str, type[FirstlineError]] = {FirstlineError.code: FirstlineError}
"""Every class by its code, so that a client can raise the server's error."""


class RequestError(FirstlineError, code="invalid_request"): ...


class InvalidTensorError(RequestError, code="invalid_tensor"): ...


class UnknownModelError(RequestError, code="unknown_model"): ...


class UnknownAnswerError(RequestError, code="unknown_answer"): ...


class NotFoundError(RequestError, code="not_found"): ...


class ConflictError(RequestError, code="conflict"): ...


class ModelMismatchError(RequestError, code="model_mismatch"): ...


class ReusedRequestIdError(RequestError, code="request_id_reused"): ...


class NotAcceptableError(RequestError, code="not_acceptable"): ...


class PayloadTooLargeError(RequestError, code="payload_too_large"): ...


class UnauthorizedError(RequestError, code="unauthorized"): ...


class ForbiddenError(RequestError, code="forbidden"): ...


class CapacityError(FirstlineError, code="unavailable"):
    retryable = True


class QueueFullError(CapacityError, code="queue_full"): ...


class DeadlineExceededError(CapacityError, code="deadline_exceeded"): ...


class SheddingError(CapacityError, code="shedding"): ...


class RateLimitedError(CapacityError, code="rate_limited"): ...


class BudgetExceededError(CapacityError, code="budget_exceeded"): ...


class StoreUnavailableError(CapacityError, code="store_unavailable"): ...


class EngineUnavailableError(CapacityError, code="engine_unavailable"): ...


class NotReadyError(CapacityError, code="not_ready"): ...


class LinkError(FirstlineError, code="link_error"):
    retryable = True


class LinkDownError(LinkError, code="link_down"): ...


class RemoteTimeoutError(LinkError, code="remote_timeout"): ...


class ProtocolError(LinkError, code="protocol_error"): ...


class RuntimeFailure(FirstlineError, code="runtime_failure"): ...  # noqa: N818 (`RuntimeError` is a builtin)


class ModelLoadError(RuntimeFailure, code="model_load_failed"): ...


class InferenceError(RuntimeFailure, code="inference_failed"): ...


class UpdateError(FirstlineError, code="update_refused"): ...


class IntegrityError(UpdateError, code="integrity"): ...


class SignatureError(UpdateError, code="signature"): ...


class MetadataRollbackError(UpdateError, code="metadata_rollback"): ...


class MetadataExpiredError(UpdateError, code="metadata_expired"): ...


class MetadataMismatchError(UpdateError, code="metadata_mismatch"): ...


class IncompatibleTargetError(UpdateError, code="incompatible_target"): ...


class SelfTestError(UpdateError, code="self_test_failed"): ...


class NoRoomError(UpdateError, code="no_room"): ...


class ConfigError(FirstlineError, code="config"): ...


class TaskError(ConfigError, code="task"):
    """Its message is a part of a sentence, without a full stop, for the error that names the file."""


__all__ = [error.__name__ for error in BY_CODE.values()]


@contextmanager
def about(key: str) -> Iterator[None]:
    """Sets the key of an error that has none."""
    try:
        yield
    except FirstlineError as error:
        error.key = error_key(error) or key
        raise


def error_key(error: BaseException | None) -> str:
    """Returns the key of an error, or of an error that it was raised from; "" if they have none."""
    while error is not None:
        if key := getattr(error, "key", ""):
            return str(key)
        error = error.__cause__
    return ""


def similar_name(name: str, known: Iterable[str], alike: float = 0.6) -> str:
    """Returns the known name that is most similar to an unknown one, whatever its case; "" if none is similar.

    Event loops call it, so it limits its work: a name of more than 64 characters has no similar one, and of many known
    names it compares 25, preferably those of the same first letter or of about the same length. For a name of more than
    32 characters it compares the one that has the most characters in common.

    Args:
        name: the unknown name.
        known: the known ones.
        alike: least similarity, from 0 to 1.
    """
    if len(name) > _COMPARED_CHARACTERS:
        return ""
    first, unknown = name[:1].lower(), name.lower()[:_COMPARED_CHARACTERS]

    def difference(other: str) -> int:
        return (other[:1].lower() != first) + (abs(len(other) - len(name)) > 2)

    longest = min(max(len(name), _LONG) + _MISSING, _COMPARED_CHARACTERS)
    candidates = [each for each in islice(known, _SEEN) if len(each) <= longest]
    matcher = SequenceMatcher(b=unknown)

    def in_common(other: str) -> float:
        matcher.set_seq1(other.lower()[:_COMPARED_CHARACTERS])
        return matcher.quick_ratio()  # which is fast, and never below the ratio

    def similarity(other: str) -> float:
        return matcher.ratio() if in_common(other) >= alike else 0.0

    compared = sorted(candidates, key=difference)[:_COMPARED]
    closest = max(compared, key=in_common if len(name) > _LONG else similarity, default="")
    return closest if closest and similarity(closest) >= alike else ""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns the end of a sentence about an unknown name: the most similar known one, or a full stop.

    Args:
        name: the unknown name; a value that is not text is similar to none.
        known: the known ones.
    """
    close = similar_name(name, known) if isinstance(name, str) else ""
    return f"; did you mean '{close}'?" if close else "."


def listed(name: object, known: Iterable[str], lead: str = "use one of") -> str:
    """Returns the end of a sentence about an unknown name: the known ones, and the most similar, alone in a long list.

    Args:
        name: the unknown name.
        known: the known ones.
        lead: words before them.
    """
    names = list(known)
    close = did_you_mean(name, names)
    return close if close != "." and len(names) > _LISTED else f"; {lead} {', '.join(names) or 'none'}{close}"


def missing_package(
    error: ImportError, what: str, extra: str, kind: type[FirstlineError] = ConfigError
) -> FirstlineError:
    """Returns the error of a program, or of a model, that lacks a package.

    Args:
        error: of the import.
        what: needs the package: a command as it is typed, or a kind of model.
        extra: of the distribution, which installs all packages that are needed.
        kind: the error's type.

    Raises:
        ImportError: the module is one of the project, which is a fault of the installation or of the code.
    """
    package = (error.name or "").partition(".")[0]
    if package in _OWN_PACKAGES:
        raise error
    return kind(f"{what} needs the package '{package}', which is not installed: pip install 'firstline[{extra}]'.")
