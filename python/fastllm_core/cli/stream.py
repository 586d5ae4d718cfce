"""Printing an answer while it is made."""

import select
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from fastllm_core.errors import of_request
from fastllm_core.inputs import make_prompt
from fastllm_core.loading import load
from fastllm_core.output_state import OutputState
from fastllm_core.outputs import Piece, RequestOutput, RequestOutputKind


@dataclass
class Answer:
    """What was printed, and how long it took."""

    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    first_token_s: float = 0.0
    total_s: float = 0.0
    finish_reason: str | None = None

    def speed(self) -> str:
        after_first = self.total_s - self.first_token_s
        rate = f"{(self.tokens - 1) / after_first:.1f} tokens/s" if self.tokens > 1 and after_first > 0 else "one token"
        return (
            f"{self.prompt_tokens} prompt tokens ({self.cached_tokens} cached), first token after "
            f"{self.first_token_s * 1e3:.0f} ms, {self.tokens} tokens, {rate}, finish: {self.finish_reason}"
        )


class Model:
    """An engine with one request at a time, for commands. asyncio, which AsyncLLM needs, takes 30 ms to import."""

    def __init__(self, model: str, *, tokenizer: str | None = None, **options):
        self._engine, self.tokenizer = load(model, tokenizer, False, options)

    def stream(self, prompt: dict, params, kind: RequestOutputKind) -> Iterator[RequestOutput]:
        """As AsyncLLM.generate(). Closing the iterator, or an exception such as Ctrl-C, ends the request."""
        made = make_prompt(prompt, params, self.tokenizer)
        state = OutputState("0", made, kind, self.tokenizer)
        waiter = select.poll()
        waiter.register(self._engine.event_fd, select.POLLIN)
        handle = self._engine.submit(made.request)
        try:
            while not state.finished:
                waiter.poll()
                deltas = self._engine.drain()
                if not deltas:
                    self._engine.check_health()
                for delta in deltas:
                    if delta.request_id != handle:  # of an answer that was stopped
                        continue
                    if delta.finish_reason == "error":
                        self._engine.check_health()  # says why when the whole engine is dead
                        raise of_request("0", delta)
                    state.take(Piece.of(delta))
                output = state.output()
                if output is not None:
                    yield output
        finally:
            if not state.finished:
                self._engine.abort(handle)

    def shutdown(self) -> None:
        self._engine.shutdown()


def print_answer(model: Model, prompt: dict, params, answer: Answer) -> None:
    """Streams one request to stdout. `answer` is filled as it goes, so it holds the part that was shown on Ctrl-C."""
    start = time.perf_counter()
    with closing(model.stream(prompt, params, RequestOutputKind.DELTA)) as stream:
        for output in stream:
            piece = output.outputs[0]
            now = time.perf_counter() - start
            if answer.tokens == 0 and piece.token_ids:
                answer.first_token_s = now
            answer.total_s = now
            answer.tokens += len(piece.token_ids)
            answer.text += piece.text
            answer.prompt_tokens = len(output.prompt_token_ids)
            answer.cached_tokens = output.num_cached_tokens
            answer.finish_reason = piece.finish_reason
            sys.stdout.write(piece.text)
            sys.stdout.flush()


def print_outputs(model: Model, prompt: dict, params, answer: Answer) -> None:
    """Prints the n outputs of a request one under the other, each under its number, when all are there."""
    start = time.perf_counter()
    for output in model.stream(prompt, params, RequestOutputKind.FINAL_ONLY):
        for piece in output.outputs:
            shown = f"[{piece.index}] {piece.text}"
            sys.stdout.write(shown if shown.endswith("\n") else shown + "\n")
        answer.total_s = time.perf_counter() - start
        answer.first_token_s = output.metrics.first_token_latency
        answer.tokens = sum(len(piece.token_ids) for piece in output.outputs)
        answer.text = "\n"
        answer.prompt_tokens = len(output.prompt_token_ids)
        answer.cached_tokens = output.num_cached_tokens
        answer.finish_reason = ", ".join(piece.finish_reason for piece in output.outputs)
