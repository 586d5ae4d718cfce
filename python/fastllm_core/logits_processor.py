"""Logits processors in Python, in the shape of vLLM V1's: for research, where their cost does not matter.

They are given to LLM or AsyncLLM as classes (logits_processors=[...]) and run in the engine's sampling thread with the
GIL held: everything waits for them. An exception ends the requests that take part, with its text, and no others.
"""

import enum
import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastllm_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from fastllm_core._C import EngineConfig, SamplingParams


class MoveDirectionality(enum.Enum):
    """How a request moves within the batch."""

    UNIDIRECTIONAL = 0  # the first place becomes free
    SWAP = 1  # two requests change places; this engine never says so


@dataclass(frozen=True)
class BatchUpdate:
    """How the batch of requests that take part has changed since the last step.

    A request keeps its place (its row in the logits) until it leaves the batch or is moved. Places in `added` may have
    been another request's before. Apply `added`, then `removed`, then `moved`.
    """

    batch_size: int  # afterwards
    removed: Sequence[int]
    # (place, parameters, prompt ids, output ids): the list of output ids grows as the request does
    added: Sequence[tuple[int, "SamplingParams", list[int], list[int]]]
    moved: Sequence[tuple[int, int, MoveDirectionality]]  # (from, to, how)


class LogitsProcessor(ABC):
    """Changes the logits of a batch before tokens are drawn.

    arg_names: keys of SamplingParams.extra_args that are for this class. With some, only requests that bring one of
    them are in its batch, and a key that no processor names is an error. Without, every request is in the batch and
    every key is let through to validate_params().
    """

    arg_names: Sequence[str] = ()

    @classmethod
    def validate_params(cls, sampling_params: "SamplingParams") -> None:
        """Raises for parameters that it cannot work with; the request is then refused. May run in any thread."""
        return

    def __init__(self, engine_config: "EngineConfig", device: str, is_pin_memory: bool):
        """Once per engine. `device` is where the logits are when apply() gets them: "cpu"."""
        super().__init__()

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether apply() never changes which token is the most likely: it is then not called for greedy requests,
        and for the others behind the temperature. Asked once."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Before each apply(): what changed in the batch; None when nothing did."""

    @abstractmethod
    def apply(self, logits: "np.ndarray") -> "np.ndarray":
        """The new logits, [batch_size, vocab_size] float32; `logits` itself, which may be changed, or an array of the
        same shape."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Runs a callable of its own for each request: (output ids, logits) -> logits or (prompt ids, output ids, logits)
    -> logits, with the logits [vocab_size] of that request. An exception in it ends that request alone."""

    def __init__(self, engine_config: "EngineConfig", device: str, is_pin_memory: bool):
        super().__init__(engine_config, device, is_pin_memory)
        self._calls: dict[int, Callable[[np.ndarray], np.ndarray]] = {}
        self._errors: dict[int, Exception] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: "SamplingParams") -> Callable | None:
        """The callable of a new request; None for one that needs none."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for place, params, prompt_ids, output_ids in batch_update.added:
            self._calls.pop(place, None)
            self._errors.pop(place, None)
            try:
                call = self._bind(params, prompt_ids, output_ids)
            except Exception as e:
                self._errors[place] = e
            else:
                if call is not None:
                    self._calls[place] = call
        for place in batch_update.removed:
            self._calls.pop(place, None)
        for source, target, how in batch_update.moved:
            moving, other = self._calls.pop(source, None), self._calls.pop(target, None)
            if moving is not None:
                self._calls[target] = moving
            if how is MoveDirectionality.SWAP and other is not None:
                self._calls[source] = other

    def apply(self, logits: "np.ndarray") -> "np.ndarray":
        for place, call in self._calls.items():
            try:
                logits[place] = call(logits[place])
            except Exception as e:
                self._errors[place] = e
        return logits

    def take_row_errors(self) -> dict[int, Exception]:
        """By place: why a request of the last apply() is to end. For the engine."""
        errors, self._errors = self._errors, {}
        return errors

    def _bind(self, params, prompt_ids, output_ids) -> Callable | None:
        call = self.new_req_logits_processor(params)
        if call is None:
            return None
        if len(inspect.signature(call).parameters) == 3:
            return lambda logits: call(prompt_ids, output_ids, logits)
        return lambda logits: call(output_ids, logits)


def make_processors(specs: Sequence[type | str] | None, config: "EngineConfig") -> list:
    """The processors that were asked for, made: classes, or their names as "module:Class"."""
    return [_class_of(spec)(config, "cpu", False) for spec in specs or ()]


def _class_of(spec: type | str) -> type:
    if isinstance(spec, str):
        module, _, name = spec.partition(":")
        if not module or not name:
            raise InvalidArgumentError(f"logits_processors: a name is 'module:Class', got {spec!r}")
        try:
            spec = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as e:
            raise InvalidArgumentError(f"logits_processors: {module}:{name} cannot be imported: {e}") from e
    if not isinstance(spec, type):
        raise InvalidArgumentError(f"logits_processors: classes or their names are needed, got {spec!r}")
    missing = [m for m in ("apply", "update_state", "is_argmax_invariant") if not callable(getattr(spec, m, None))]
    if missing:
        raise InvalidArgumentError(f"logits_processors: {spec.__name__} has no method {missing[0]}()")
    return spec
