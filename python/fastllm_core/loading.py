"""What LLM and AsyncLLM have in common: options -> engine and tokenizer."""

from pathlib import Path

from fastllm_core import vllm_keywords
from fastllm_core._C import Engine
from fastllm_core.errors import ModelNotFoundError
from fastllm_core.model_path import resolve_model


def load(model: str, tokenizer: str | None, skip_tokenizer_init: bool, options: dict):
    """(Engine, Tokenizer or None). Options are checked before any file is read."""
    config = vllm_keywords.engine_config(options)
    config.model = resolve_model(model)
    if skip_tokenizer_init:
        return Engine.create(config), None
    from fastllm_core.tokenizer import load_tokenizer

    _check_folder(Path(config.model))
    source = resolve_model(tokenizer) if tokenizer else config.model
    loaded = load_tokenizer(source)
    # The engine reads the vocabulary of its own GGUF file itself.
    own = source == config.model and source.endswith(".gguf")
    return Engine.create(config, None if own else loaded.token_table()), loaded


def _check_folder(model: Path) -> None:
    """What is no model folder at all is not blamed on its tokenizer."""
    if model.is_dir() and not (model / "config.json").is_file():
        raise ModelNotFoundError(f"{model} is no Hugging Face model folder: it has no config.json")
