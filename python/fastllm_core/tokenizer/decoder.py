"""The decoder of a tokenizer.json as columns of the engine's TokenTable.

The table can express a decoder under which a token's text depends on that token alone and on whether it comes first,
besides UTF-8 that is spread over tokens. Of the library's decoders that is ByteLevel; no decoder at all; and sequences
of Replace (of a string), Metaspace, WordPiece, ByteFallback, Fuse, and a Strip of one leading space. All others (the
text of BPEDecoder depends on what is last, that of CTC on neighbours, ...) are left to the library itself: stream.py.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tokenizers import decoders

from fastllm_core.tokenizer.byte_level import bytes_of

# What the library's ByteFallback takes for a byte: the number is parsed as Rust does, which allows a sign.
_BYTE_TOKEN = re.compile(r"<0x([0-9a-fA-F]{2}|\+[0-9a-fA-F])>")

# (text of a token, is it the first) -> text
_Step = Callable[[str, bool], str]


@dataclass
class Columns:
    """`pieces` and `special` by id; `options` are the further arguments of _C.TokenTable."""

    pieces: list[bytes]
    special: list[bool]
    options: dict = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pieces)

    def piece(self, token: int) -> bytes:
        return self.pieces[token]


def columns_of(decoder: dict | None, vocab: dict[str, int], added: list[dict]) -> Columns | None:
    """The table of a vocabulary with its added tokens (as in tokenizer.json); None when the library has to decode."""
    tokens = {i: text for text, i in vocab.items()}
    tokens.update({a["id"]: a["content"] for a in added})
    made = _express(decoder, tokens)
    if made is None:
        return None
    pieces, options = made
    specials = {a["content"] for a in added if a.get("special")}  # the library leaves out by text, not by id
    special = [tokens.get(i) in specials for i in range(len(pieces))]
    raw = {a["id"]: a["content"].encode() for a in added}
    if any(pieces[i] != text for i, text in raw.items()):
        options["added"] = raw
    return Columns(pieces, special, options)


def written_columns(vocab: dict[str, int], added: list[dict]) -> Columns:
    """The tokens as they are written, for a decoder that columns_of() cannot express."""
    tokens = {i: text for text, i in vocab.items()}
    specials = {a["content"] for a in added if a.get("special")}
    pieces = _by_id(tokens, str.encode)
    return Columns(pieces, [tokens.get(i) in specials for i in range(len(pieces))])


def _express(decoder: dict | None, tokens: dict[int, str]) -> tuple[list[bytes], dict] | None:
    steps = _flat(decoder)
    if [s["type"] for s in steps] in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return _by_id(tokens, bytes_of), {}
    plan = _plan(steps, joined_by_space=decoder is None)
    if plan is None:
        return None
    functions, falls_back, strips = plan
    first = _by_id(tokens, lambda text: _run(functions, text, True))
    other = _by_id(tokens, lambda text: _run(functions, text, False))
    options = {"strip_leading_space": strips}
    if falls_back:
        is_byte = [_BYTE_TOKEN.fullmatch(text.decode()) is not None for text in other]
        if is_byte != [_BYTE_TOKEN.fullmatch(text.decode()) is not None for text in first]:
            return None
        first, other = _to_bytes(first), _to_bytes(other)
        options |= {"invalid_bytes": "replace_run", "byte_token": is_byte}
    if first != other:
        if "" in tokens.values():  # it would count as the first, but has no text that shows it in the table
            return None
        options |= {"first_bytes": first, "first_bytes_until": "token"}
    return other, options


def _plan(steps: list[dict], joined_by_space: bool) -> tuple[list[_Step], bool, bool] | None:
    """(what happens to a token, does ByteFallback follow, is a leading space taken off); None: cannot be expressed."""
    functions: list[_Step] = [lambda text, first: text if first else " " + text] if joined_by_space else []
    falls_back = fused = strips = False
    for step in steps:
        kind = step["type"]
        if kind == "Fuse":
            fused = True
        elif fused:
            if strips or (kind, step.get("content"), step.get("start"), step.get("stop")) != ("Strip", " ", 1, 0):
                return None
            strips = True
        elif falls_back:
            return None
        elif kind == "ByteFallback":
            falls_back = True
        elif (function := _step(step)) is not None:
            functions.append(function)
        else:
            return None
    return functions, falls_back, strips


def _step(step: dict) -> _Step | None:
    if step["type"] == "Replace" and step["pattern"].get("String"):
        old, new = step["pattern"]["String"], step["content"]
        return lambda text, first: text.replace(old, new)
    if step["type"] == "Metaspace":
        mark = step["replacement"]
        at_first = " " if step.get("prepend_scheme", "always") == "never" else ""
        return lambda text, first: text.replace(mark, at_first if first else " ")
    if step["type"] == "WordPiece":
        decode = decoders.WordPiece(step["prefix"], step["cleanup"]).decode
        return lambda text, first: decode([text] if first else ["", text])
    return None


def _flat(decoder: dict | None) -> list[dict]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for d in decoder["decoders"] for step in _flat(d)]
    return [decoder]


def _run(functions: list[_Step], text: str, first: bool) -> bytes:
    for function in functions:
        text = function(text, first)
    return text.encode()


def _by_id(tokens: dict[int, str], to_bytes: Callable[[str], bytes]) -> list[bytes]:
    out = [b""] * (max(tokens, default=-1) + 1)
    for i, text in tokens.items():
        out[i] = to_bytes(text)
    return out


def _to_bytes(column: list[bytes]) -> list[bytes]:
    return [bytes([int(t[3:5], 16)]) if _BYTE_TOKEN.fullmatch(t.decode()) else t for t in column]
