"""The printable stand-ins for the 256 bytes that byte-level BPE vocabularies use (GPT-2)."""


def _byte_of_char() -> dict[str, int]:
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in kept}
    others = (b for b in range(256) if b not in set(kept))
    table.update({chr(256 + n): b for n, b in enumerate(others)})
    return table


BYTE_OF_CHAR = _byte_of_char()

# For str.translate(): a stand-in becomes the character of its byte's number, any other Latin-1 character one that
# Latin-1 has no byte for.
_TO_LATIN_1 = dict.fromkeys(range(256), "\uffff") | {ord(c): chr(byte) for c, byte in BYTE_OF_CHAR.items()}


def bytes_of(token: str) -> bytes:
    """The bytes of a vocabulary entry; an entry with another character stands for its own text."""
    try:
        return token.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", errors="surrogateescape")
