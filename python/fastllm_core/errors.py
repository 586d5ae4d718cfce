"""Exceptions. Each is a FastLLMError and also the built-in that fits, so that either can be caught."""


class FastLLMError(Exception):
    """Base of everything that fastllm_core raises on its own account."""


class InvalidArgumentError(FastLLMError, ValueError):
    """A value outside its limits; the message names the value and the limit."""


class UnknownOptionError(InvalidArgumentError, TypeError):
    """An option or keyword that does not exist; the message names the nearest one."""


class ModelNotFoundError(FastLLMError, FileNotFoundError):
    """A file, model or request that does not exist; the message says what was looked for."""


class ModelLoadError(FastLLMError, ValueError):
    """A model that cannot be loaded."""


class CorruptFileError(ModelLoadError):
    """A file that is truncated or damaged."""


class UnsupportedError(ModelLoadError):
    """Valid in itself, but not supported by this build."""


class ChatTemplateError(FastLLMError, ValueError):
    """A chat template that cannot be read or rendered, or that refuses the messages."""


class ResourceExhaustedError(FastLLMError, RuntimeError):
    """A queue or pool is full; the call may be repeated later."""


class QueueFullError(ResourceExhaustedError):
    """Too many requests or tokens wait; the request was not taken. retry_after: after how many seconds to try again."""

    retry_after: float = 1.0


class QueueTimeoutError(ResourceExhaustedError, TimeoutError):
    """A request was still queued when its max_queue_time_ms was over."""


class RequestTimeoutError(FastLLMError, TimeoutError):
    """A request was not finished when its timeout_ms was over."""


class InvalidStateError(FastLLMError, RuntimeError):
    """The object is in a state that forbids the call."""


class EngineDeadError(FastLLMError, RuntimeError):
    """The engine is stopped or poisoned and serves nobody any more."""


class InternalError(FastLLMError, RuntimeError):
    """A defect of fastllm_core."""


_OF_REQUESTS = {
    "deadline_exceeded": RequestTimeoutError,
    "resource_exhausted": QueueTimeoutError,
    "invalid_argument": InvalidArgumentError,
}


def of_request(request_id: str, news) -> FastLLMError:
    """The exception for a request that ended with an error; `news` has its error_code and error."""
    return _OF_REQUESTS.get(news.error_code, InternalError)(f"request {request_id}: {news.error}")
