"""Ids of GGUF vocabularies against expected ones, kept in files beside them:  python gguf_vocabularies.py FOLDER

The folder holds NAME.gguf (only the metadata is read), NAME.gguf.inp and NAME.gguf.out, the form of llama.cpp's
models/ggml-vocab-*: texts, each followed by a line __ggml_vocab_test__, and in the same order one line of ids for each,
without special tokens. Prints how many cases pass for each vocabulary; exit status 0 when all do that can be read.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

SEPARATOR = "\n__ggml_vocab_test__\n"


@dataclass
class Result:
    """One vocabulary. `unsupported` says why it cannot be read at all."""

    name: str
    total: int = 0
    failures: list[tuple[str, list[int], list[int]]] = field(default_factory=list)  # text, expected, got
    unsupported: str = ""

    def line(self) -> str:
        if self.unsupported:
            return f"{self.name}: not read: {self.unsupported}"
        return f"{self.name}: {self.total - len(self.failures)} of {self.total}"


def read_cases(vocabulary: Path) -> list[tuple[str, list[int]]]:
    texts = Path(f"{vocabulary}.inp").read_bytes().decode().split(SEPARATOR)
    if texts and not texts[-1].strip("\n"):
        texts.pop()  # the file ends with a separator
    lines = Path(f"{vocabulary}.out").read_text().splitlines()
    if len(texts) != len(lines):
        raise ValueError(f"{vocabulary}: {len(texts)} texts, but {len(lines)} lines of ids")
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines)]


def check(vocabulary: Path) -> Result:
    from fastllm_core.errors import UnsupportedError
    from fastllm_core.tokenizer import load_tokenizer

    result = Result(vocabulary.name)
    try:
        tokenizer = load_tokenizer(str(vocabulary))
    except UnsupportedError as e:
        result.unsupported = str(e)
        return result
    for text, expected in read_cases(vocabulary):
        result.total += 1
        got = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        if got != expected:
            result.failures.append((text, expected, got))
    return result


def check_folder(folder: Path) -> list[Result]:
    found = sorted(p for p in folder.glob("*.gguf") if Path(f"{p}.inp").is_file() and Path(f"{p}.out").is_file())
    if not found:
        raise FileNotFoundError(f"{folder} holds no NAME.gguf with NAME.gguf.inp and NAME.gguf.out")
    return [check(p) for p in found]


def main() -> int:
    results = check_folder(Path(sys.argv[1]))
    for result in results:
        print(result.line())
        for text, expected, got in result.failures[:3]:
            print(f"    {text!r}\n      expected {expected}\n      got      {got}")
    return int(any(r.failures for r in results))


if __name__ == "__main__":
    sys.exit(main())
