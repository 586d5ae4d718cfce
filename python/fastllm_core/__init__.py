"""fastllm_core: an LLM inference engine. Names and shapes follow vLLM's.

Nothing is loaded before it is used: importing the package takes a few milliseconds, and the Python module torch is
never imported.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastllm_core._C import EngineConfig, SamplingParams
    from fastllm_core.async_llm import AsyncLLM
    from fastllm_core.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from fastllm_core.errors import (
        ChatTemplateError,
        CorruptFileError,
        EngineDeadError,
        FastLLMError,
        InternalError,
        InvalidArgumentError,
        InvalidStateError,
        ModelLoadError,
        ModelNotFoundError,
        QueueFullError,
        QueueTimeoutError,
        RequestTimeoutError,
        ResourceExhaustedError,
        UnknownOptionError,
        UnsupportedError,
    )
    from fastllm_core.llm import LLM
    from fastllm_core.logits_processor import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor
    from fastllm_core.logprobs import Logprob
    from fastllm_core.outputs import CompletionOutput, RequestOutput, RequestOutputKind

_HOMES = {
    "LLM": "fastllm_core.llm",
    "AsyncLLM": "fastllm_core.async_llm",
    "SamplingParams": "fastllm_core._C",
    "EngineConfig": "fastllm_core._C",
    "BeamSearchOutput": "fastllm_core.beam_search",
    "BeamSearchParams": "fastllm_core.beam_search",
    "BeamSearchSequence": "fastllm_core.beam_search",
    "AdapterLogitsProcessor": "fastllm_core.logits_processor",
    "BatchUpdate": "fastllm_core.logits_processor",
    "LogitsProcessor": "fastllm_core.logits_processor",
    "Logprob": "fastllm_core.logprobs",
    "RequestOutput": "fastllm_core.outputs",
    "CompletionOutput": "fastllm_core.outputs",
    "RequestOutputKind": "fastllm_core.outputs",
    "FastLLMError": "fastllm_core.errors",
    "InvalidArgumentError": "fastllm_core.errors",
    "UnknownOptionError": "fastllm_core.errors",
    "ModelNotFoundError": "fastllm_core.errors",
    "ModelLoadError": "fastllm_core.errors",
    "CorruptFileError": "fastllm_core.errors",
    "UnsupportedError": "fastllm_core.errors",
    "ChatTemplateError": "fastllm_core.errors",
    "ResourceExhaustedError": "fastllm_core.errors",
    "QueueFullError": "fastllm_core.errors",
    "QueueTimeoutError": "fastllm_core.errors",
    "RequestTimeoutError": "fastllm_core.errors",
    "InvalidStateError": "fastllm_core.errors",
    "EngineDeadError": "fastllm_core.errors",
    "InternalError": "fastllm_core.errors",
}

__all__ = [
    "LLM",
    "AdapterLogitsProcessor",
    "AsyncLLM",
    "BatchUpdate",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ChatTemplateError",
    "CompletionOutput",
    "CorruptFileError",
    "EngineConfig",
    "EngineDeadError",
    "FastLLMError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidStateError",
    "LogitsProcessor",
    "Logprob",
    "ModelLoadError",
    "ModelNotFoundError",
    "QueueFullError",
    "QueueTimeoutError",
    "RequestOutput",
    "RequestOutputKind",
    "RequestTimeoutError",
    "ResourceExhaustedError",
    "SamplingParams",
    "UnknownOptionError",
    "UnsupportedError",
    "__version__",
]


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("fastllm-core")
    except metadata.PackageNotFoundError:  # run from a source tree
        return _import_module("fastllm_core._C").__version__


def __getattr__(name: str):
    if name == "__version__":
        value = _version()
    elif name in _HOMES:
        value = getattr(_import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'fastllm_core' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
