"""Tokenizers: text to ids, ids to text, chat messages to text.

load_tokenizer() takes a .gguf file (its metadata), a Hugging Face folder (tokenizer.json, else tokenizer.model), a
tokenizer.json or a sentencepiece .model file.
"""

from pathlib import Path

from fastllm_core.errors import ModelNotFoundError
from fastllm_core.tokenizer.base import Tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]


def load_tokenizer(path: str) -> Tokenizer:
    """The tokenizer at `path`; ModelNotFoundError says which files were looked for."""
    p = Path(path)
    if p.is_dir():
        return _from_folder(p)
    if not p.is_file():
        raise ModelNotFoundError(f"tokenizer '{path}' not found: no such file or folder")
    if p.suffix == ".gguf":
        from fastllm_core.tokenizer.gguf import tokenizer_from_gguf

        return tokenizer_from_gguf(str(p))
    if p.suffix == ".json":
        from fastllm_core.tokenizer.hf import tokenizer_from_json

        return tokenizer_from_json(p)
    if p.suffix == ".model":
        from fastllm_core.tokenizer.spm import tokenizer_from_model

        return tokenizer_from_model(p)
    raise ModelNotFoundError(f"tokenizer '{path}': expected a .gguf, .json or .model file or a folder")


def _from_folder(folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer(str(folder / "tokenizer.json"))
    if (folder / "tokenizer.model").is_file():
        return load_tokenizer(str(folder / "tokenizer.model"))
    raise ModelNotFoundError(f"no tokenizer in {folder}: looked for tokenizer.json and tokenizer.model")
