"""Text of a running request by the library `tokenizers`, for decoders that the engine's table cannot express."""

from collections.abc import Callable, Sequence

from fastllm_core._C import StopFilter

_CONTEXT = 32  # tokens of the prompt that the output's first tokens are decoded with
_MAX_HELD = 64  # tokens after which text that ends in U+FFFD is sent all the same


class LibraryDetokenizer:
    """Increments of decode() over growing output.

    The method of the library's DecodeStream: decode what is new together with a little that is known, and hold it back
    while it ends in U+FFFD, which more tokens may mend. Unlike it this can end the output, and delivers a run of bytes
    that never becomes valid, in linear time.

    joined: for spaces_between_special_tokens=False, the texts of added tokens; one that follows another is written so.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int] = (), joined: dict[int, bytes] | None = None
    ):
        self._decode = decode
        self._joined = joined or {}
        self._follows_added = False
        self._known = list(prompt[-_CONTEXT:])  # ids whose text is out
        self._known_text = decode(self._known)
        self._new: list[int] = []

    def append(self, token: int) -> str:
        """The text that this token completes."""
        text = self._grow(token)
        if self._follows_added and token in self._joined:
            text = self._joined[token].decode()
        self._follows_added = token in self._joined
        return text

    def _grow(self, token: int) -> str:
        self._new.append(token)
        text = self._decode(self._known + self._new)
        full = len(self._new) >= _MAX_HELD
        if full or (len(text) > len(self._known_text) and not text.endswith("\ufffd")):
            return self._send(text)
        return ""

    def flush(self) -> str:
        """Ends the output: the rest of its text."""
        return self._send(self._decode(self._known + self._new)) if self._new else ""

    def _send(self, text: str) -> str:
        begin = 0  # of what both texts begin with: nearly always all of the known one
        if text.startswith(self._known_text):
            begin = len(self._known_text)
        else:
            while begin < min(len(text), len(self._known_text)) and text[begin] == self._known_text[begin]:
                begin += 1
        # Behind tokens without text the context stays, so that what depends on the last text still sees it.
        without_text = len(text) == begin
        self._known = (self._known + self._new)[-_CONTEXT:] if without_text else self._new
        self._known_text = self._decode(self._known)
        self._new = []
        return text[begin:]


class LibraryTextStream:
    """As the engine's TextStream (cpp/core/text/text_stream.h): text, offsets and stop strings of one request."""

    def __init__(self, tokenizer, prompt: Sequence[int], params):
        skip = params.skip_special_tokens
        joined = None if skip or params.spaces_between_special_tokens else tokenizer.added_texts()
        self._detokenizer = LibraryDetokenizer(lambda ids: tokenizer.library_decode(ids, skip), prompt, joined)
        self._filter = StopFilter(params.stop, params.include_stop_str_in_output)
        pieces, special = tokenizer._pieces() if params.stop and skip else ([], [])
        stops = {s.encode(): s for s in params.stop}
        # Special tokens that the text does not show, but whose text is a stop string.
        self._hidden = {i: stops[p] for i, (p, hides) in enumerate(zip(pieces, special)) if hides and p in stops}
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._num_chars = 0

    def append(self, tokens: Sequence[int], finish_reason: str | None) -> tuple[str, list[int], str | None]:
        """(text to send, text offsets of the tokens that count, the stop string that matched)."""
        offsets = []
        drops_last = finish_reason == "stop" and not self._include_stop
        for n, token in enumerate(tokens, start=1):
            self._num_tokens += 1
            offsets.append(self._num_chars)
            if drops_last and n == len(tokens):
                break
            if token in self._hidden and self._num_tokens > self._min_tokens:
                stop = self._add(self._detokenizer.flush()) or self._hidden[token]
                return self._filter.take(True), offsets, stop
            if stop := self._add(self._detokenizer.append(token)):
                return self._filter.take(True), offsets, stop
        if finish_reason is not None and (stop := self._add(self._detokenizer.flush())):
            return self._filter.take(True), offsets, stop
        return self._filter.take(finish_reason is not None), offsets, None

    def _add(self, text: str) -> str | None:
        self._num_chars += len(text)
        return self._filter.add(text, self._num_tokens > self._min_tokens) if text else None
