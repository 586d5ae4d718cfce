"""Log probabilities in the shapes of OpenAI's APIs, made from the engine's (id, logprob, rank) tuples."""

from collections.abc import Sequence

from fastllm_core.logprobs import Entry

FLOOR = -9999.0  # JSON has no minus infinity


class LogprobTexts:
    """How the tokens of one request are shown: as their text, or as token_id:<id>."""

    def __init__(self, tokenizer, as_ids: bool):
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def text(self, token: int) -> str:
        if self._as_ids or self._tokenizer is None:
            return f"token_id:{token}"
        return self._tokenizer.token_text(token)

    def data(self, token: int) -> list[int] | None:
        """The token's own bytes; several tokens may make one character."""
        return None if self._tokenizer is None else list(self._tokenizer.token_bytes(token))

    def chat(self, positions: Sequence[Sequence[Entry]], top: int) -> dict:
        """{"content": [...]}: the token that was picked, and the `top` likeliest."""
        return {"content": [self._chat_token(entries, top) for entries in positions]}

    def _chat_token(self, entries: Sequence[Entry], top: int) -> dict:
        return {**self._chat_entry(entries[0]), "top_logprobs": [self._chat_entry(e) for e in likeliest(entries, top)]}

    def _chat_entry(self, entry: Entry) -> dict:
        token, logprob, _ = entry
        return {"token": self.text(token), "logprob": max(logprob, FLOOR), "bytes": self.data(token)}

    def completion(self, positions: Sequence[Sequence[Entry]], top: int, offset: int) -> tuple[dict, int]:
        """{tokens, token_logprobs, top_logprobs, text_offset} and the offset after them. A position without entries is
        the first token of a prompt, which nothing comes before; `first` of it is in the caller's hands."""
        out: dict = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entries in positions:
            text = self.text(entries[0][0])
            out["tokens"].append(text)
            out["token_logprobs"].append(max(entries[0][1], FLOOR))
            out["top_logprobs"].append(self._top(entries, top))
            out["text_offset"].append(offset)
            offset += len(text)
        return out, offset

    def prompt_completion(self, ids: Sequence[int], positions: Sequence[Sequence[Entry]], top: int) -> tuple[dict, int]:
        """As completion(), for a prompt that is echoed: the first token has no logprob."""
        first = self.text(ids[0])
        out, offset = self.completion(positions[1:], top, len(first))
        before = {"tokens": first, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
        return {name: [value, *out[name]] for name, value in before.items()}, offset

    def _top(self, entries: Sequence[Entry], top: int) -> dict[str, float]:
        """The likeliest and the token itself. Two tokens may have one text, as byte pieces do: the likelier stays."""
        out: dict[str, float] = {}
        for token, logprob, _ in [*likeliest(entries, top), entries[0]]:
            text, value = self.text(token), max(logprob, FLOOR)
            if value > out.get(text, float("-inf")):
                out[text] = value
        return out

    def prompt(self, positions: Sequence[Sequence[Entry]]) -> list[dict | None]:
        """vLLM's prompt_logprobs: by token id."""
        return [
            {str(t): {"logprob": max(p, FLOOR), "rank": rank, "decoded_token": self.text(t)} for t, p, rank in entries}
            or None
            for entries in positions
        ]


def likeliest(entries: Sequence[Entry], top: int) -> list[Entry]:
    """The entries of rank 1 to `top`, in that order; all that have no rank (logprob_token_ids) follow."""
    ranked = sorted((e for e in entries if e[2] is not None and (top < 0 or e[2] <= top)), key=lambda e: e[2])
    return ranked + [e for e in entries[1:] if e[2] is None]
