"""Printing an answer while it is made."""

import sys
import time
from dataclasses import dataclass

from fastllm_core.async_llm import AsyncLLM
from fastllm_core.outputs import RequestOutputKind


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


async def print_answer(llm: AsyncLLM, prompt: dict, params, answer: Answer) -> None:
    """Streams one request to stdout. `answer` is filled as it goes, so it holds the part that was shown on Ctrl-C."""
    start = time.perf_counter()
    stream = llm.generate(prompt, params, output_kind=RequestOutputKind.DELTA)
    try:
        async for output in stream:
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
    finally:
        await stream.aclose()  # on Ctrl-C or a closed pipe the request ends now


async def print_outputs(llm: AsyncLLM, prompt: dict, params, answer: Answer) -> None:
    """Prints the n outputs of a request one under the other, each under its number, when all are there."""
    start = time.perf_counter()
    async for output in llm.generate(prompt, params, output_kind=RequestOutputKind.FINAL_ONLY):
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
