"""The printable stand-ins for the 256 bytes that byte-level BPE vocabularies use (GPT-2)."""


def _byte_of_char() -> dict[str, int]:
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in kept}
    others = (b for b in range(256) if b not in set(kept))
    table.update({chr(256 + n): b for n, b in enumerate(others)})
    return table


BYTE_OF_CHAR = _byte_of_char()


def bytes_of(token: str) -> bytes:
    """The bytes of a vocabulary entry; an entry with another character stands for its own text."""
    try:
        return bytes(BYTE_OF_CHAR[c] for c in token)
    except KeyError:
        return token.encode("utf-8", errors="surrogateescape")
