"""What LLM and AsyncLLM have in common: options -> engine and tokenizer."""

from pathlib import Path

from fastllm_core import vllm_keywords
from fastllm_core._C import Engine
from fastllm_core.errors import ModelNotFoundError
from fastllm_core.logits_processor import make_processors
from fastllm_core.model_path import resolve_model


def load(model: str, tokenizer: str | None, skip_tokenizer_init: bool, options: dict):
    """(Engine, Tokenizer or None). Options are checked before any file is read."""
    classes = options.pop("logits_processors", None)
    config = vllm_keywords.engine_config(options)
    config.model = resolve_model(model)
    processors = make_processors(classes, config) if classes else []
    if skip_tokenizer_init:
        return Engine.create(config, None, processors), None
    from fastllm_core.tokenizer import load_tokenizer

    _check_folder(Path(config.model))
    source = resolve_model(tokenizer) if tokenizer else config.model
    loaded = load_tokenizer(source)
    # The engine reads the vocabulary of its own GGUF file itself.
    own = source == config.model and source.endswith(".gguf")
    table = None if own else loaded.token_table()
    engine = Engine.create(config, table, processors)
    if table is None and not own:
        from fastllm_core.library_text import LibraryTextEngine

        return LibraryTextEngine(engine, loaded), loaded
    return engine, loaded


def _check_folder(model: Path) -> None:
    """What is no model folder at all is not blamed on its tokenizer."""
    if model.is_dir() and not (model / "config.json").is_file():
        raise ModelNotFoundError(f"{model} is no Hugging Face model folder: it has no config.json")


def sampling_defaults(info) -> dict:
    """What the model states (option generation_config), by field of SamplingParams."""
    return {name: getattr(info.default_sampling_params, name) for name in info.default_sampling_fields}
