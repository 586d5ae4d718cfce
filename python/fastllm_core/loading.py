"""What LLM and AsyncLLM have in common: options -> engine and tokenizer."""

import threading
from pathlib import Path

from fastllm_core import nodes, vllm_keywords
from fastllm_core._C import Engine
from fastllm_core.errors import ModelNotFoundError
from fastllm_core.logits_processor import make_processors
from fastllm_core.model_path import resolve_model


def load(model: str, tokenizer: str | None, skip_tokenizer_init: bool, options: dict):
    """(Engine, Tokenizer or None). Options are checked before any file is read."""
    classes = options.pop("logits_processors", None)
    config = vllm_keywords.engine_config(options)
    config.model = resolve_model(model)
    if config.distributed_executor_backend == "processes":
        nodes.prepare(config)
    elif config.distributed_executor_backend == "ray":
        from fastllm_core import ray_nodes

        ray_nodes.start(config)
    processors = make_processors(classes, config) if classes else []
    if skip_tokenizer_init:
        return Engine.create(config, None, processors), None
    from fastllm_core.tokenizer import load_tokenizer

    _check_folder(Path(config.model))
    source = resolve_model(tokenizer) if tokenizer else config.model
    if source == config.model and source.endswith(".gguf"):
        # The engine reads the vocabulary of its own GGUF file itself, so neither waits for the other.
        return _side_by_side(lambda: Engine.create(config, None, processors), lambda: load_tokenizer(source))
    loaded = load_tokenizer(source)
    table = loaded.token_table()
    engine = Engine.create(config, table, processors)
    if table is None:
        from fastllm_core.library_text import LibraryTextEngine

        return LibraryTextEngine(engine, loaded), loaded
    return engine, loaded


def _side_by_side(make_engine, make_tokenizer):
    """(engine, tokenizer), the engine made on a thread of its own. The tokenizer's error goes before the engine's."""
    made: list = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            made.append(make_engine())
        except BaseException as e:  # raised below, on the caller's thread
            errors.append(e)

    thread = threading.Thread(target=run, name="fastllm-load")
    thread.start()
    try:
        tokenizer = make_tokenizer()
    except BaseException:
        thread.join()
        for engine in made:
            engine.shutdown()
        raise
    thread.join()
    if errors:
        raise errors[0]
    return made[0], tokenizer


def _check_folder(model: Path) -> None:
    """What is no model folder at all is not blamed on its tokenizer."""
    if model.is_dir() and not (model / "config.json").is_file():
        raise ModelNotFoundError(f"{model} is no Hugging Face model folder: it has no config.json")


def sampling_defaults(info) -> dict:
    """What the model states (option generation_config), by field of SamplingParams."""
    return {name: getattr(info.default_sampling_params, name) for name in info.default_sampling_fields}
