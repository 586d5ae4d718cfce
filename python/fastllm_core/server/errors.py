"""Errors as HTTP sees them: a status, and one JSON object in the shape of the API that was called."""

import http
import json
import math
import re

from fastllm_core import errors
from fastllm_core._C import SamplingParams

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
MAX_MESSAGE_CHARS = 1000
# Names that messages begin with, and what requests call them.
_FIELDS = {f.name: f.name for f in SamplingParams.fields()}
_FIELDS |= {"prompt_token_ids": "prompt", "messages": "messages", "priority": "priority"}


class ApiError(Exception):
    """What a client is told. `param` is the field at fault, as a dotted path."""

    def __init__(self, status: int, message: str, param: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.message = _clean(message)
        self.param = param
        self.headers = headers or {}

    def body(self, path: str = "") -> bytes:
        """The JSON text; `path` tells the API by its prefix."""
        if path.startswith("/v1/messages"):
            kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
            return dump({"type": "error", "error": {"type": kind, "message": self.message}})
        return dump({"error": self.openai()})

    def openai(self) -> dict:
        kind = _TYPES.get(self.status) or http.HTTPStatus(self.status).phrase.title().replace(" ", "") + "Error"
        return {"message": self.message, "type": kind, "param": self.param, "code": self.status}


def dump(value) -> bytes:
    """JSON as it is sent."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param)


def from_exception(error: BaseException, retry_after_s: int = 1) -> ApiError:
    """What a client may know about an exception. What is our own fault is told in the log, not to the client."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, errors.ResourceExhaustedError):
        seconds = max(retry_after_s, math.ceil(getattr(error, "retry_after", 0)))
        return ApiError(503, str(error), headers={"Retry-After": str(seconds)})
    if isinstance(error, errors.RequestTimeoutError):
        return ApiError(504, str(error))
    if isinstance(error, errors.EngineDeadError):
        return ApiError(500, "the engine does not serve; see /health and the server's log")
    if isinstance(error, errors.InvalidStateError):
        return ApiError(409, str(error))
    if isinstance(error, (errors.InvalidArgumentError, errors.ChatTemplateError, errors.UnsupportedError)):
        return bad_request(str(error), _param_of(str(error)))
    return ApiError(500, "internal error; the server's log says more")


def _param_of(message: str) -> str | None:
    """The field that a message of the engine or of the chat template begins with, as it does when one is at fault."""
    found = re.match(r"(\w+)((?:\[\d+\])?)(?=[ :])", message)
    if found is None or found[1] not in _FIELDS:
        return None
    return _FIELDS[found[1]] + found[2]


def _clean(message: str) -> str:
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[: MAX_MESSAGE_CHARS - 3] + "..."
    return message.encode("utf-8", "replace").decode()
