"""What LLM and AsyncLLM have in common: options -> engine and tokenizer."""

from fastllm_core import vllm_keywords
from fastllm_core._C import Engine
from fastllm_core.model_path import resolve_model


def load(model: str, tokenizer: str | None, skip_tokenizer_init: bool, options: dict):
    """(Engine, Tokenizer or None). Options are checked before any file is read."""
    config = vllm_keywords.engine_config(options)
    config.model = resolve_model(model)
    if skip_tokenizer_init:
        return Engine.create(config), None
    from fastllm_core.tokenizer import load_tokenizer

    source = resolve_model(tokenizer) if tokenizer else config.model
    loaded = load_tokenizer(source)
    # The engine reads the vocabulary of its own GGUF file itself.
    own = source == config.model and source.endswith(".gguf")
    table = None if own else loaded.token_table()
    engine = Engine.create(config, table)
    if table is None and not own:
        from fastllm_core.library_text import LibraryTextEngine

        return LibraryTextEngine(engine, loaded), loaded
    return engine, loaded
