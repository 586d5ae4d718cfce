"""The command fastllm. Nothing that is slow to import is imported before a command needs it."""

import importlib
import os
import sys

# Command -> (module, one line of help).
COMMANDS = {
    "generate": ("fastllm_core.cli.generate", "continue a prompt and stream the text"),
    "chat": ("fastllm_core.cli.chat", "talk with a model"),
    "serve": ("fastllm_core.cli.serve", "serve a model over HTTP, OpenAI- and Anthropic-compatible"),
    "complete": ("fastllm_core.cli.complete", "continue a prompt by a server"),
    "run-batch": ("fastllm_core.cli.run_batch", "answer a file of requests in OpenAI's batch format"),
    "bench": ("fastllm_core.cli.bench", "measure a server or an engine"),
    "collect-env": ("fastllm_core.cli.collect_env", "say what this machine and this build are"),
    "debug": ("fastllm_core.cli.debug", "replay a recording of an engine"),
}

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, 1 on an error, 2 on bad flags, 130 on Ctrl-C."""
    from fastllm_core.errors import FastLLMError

    args = sys.argv[1:] if argv is None else argv
    _open_missing_streams()
    try:
        status = _dispatch(args)
        sys.stdout.flush()
        return status
    except FastLLMError as e:
        print(f"fastllm: error: {e}", file=sys.stderr)
        return EXIT_ERROR
    except UnicodeDecodeError as e:  # of what was typed or piped in
        print(f"fastllm: error: the input is not {e.encoding}: byte 0x{e.object[e.start]:02x}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()  # the reader is gone
        return EXIT_BROKEN_PIPE
    except OSError as e:  # a full disk, a file that may not be read
        print(f"fastllm: error: {e}", file=sys.stderr)
        _discard_stdout()
        return EXIT_ERROR


def _discard_stdout() -> None:
    """What stdout still holds cannot be written, and the interpreter would complain when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_missing_streams() -> None:
    """A process may start with its standard streams closed; Python then has None in their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open until the end


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help(), file=sys.stdout if args else sys.stderr)
        return 0 if args else EXIT_USAGE
    if args[0] in ("-V", "--version"):
        import fastllm_core

        print(f"fastllm {fastllm_core.__version__}")
        return 0
    if args[0] not in COMMANDS:
        return _unknown_command(args[0])
    return importlib.import_module(COMMANDS[args[0]][0]).run(args[1:])


def _unknown_command(word: str) -> int:
    import difflib

    near = difflib.get_close_matches(word, [*COMMANDS, "--help", "--version"], n=1)
    kind = "option" if word.startswith("-") else "command"
    hint = f"did you mean '{near[0]}'?" if near else "commands: " + ", ".join(COMMANDS)
    print(f"fastllm: error: unknown {kind} '{word}'; {hint}", file=sys.stderr)
    return EXIT_USAGE


def _help() -> str:
    lines = ["usage: fastllm COMMAND [options]", "", "commands:"]
    lines += [f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items()]
    lines += ["", "options:", "  --version  show the version", "  --help     show this help"]
    lines += ["", "fastllm COMMAND --help lists the options of a command."]
    return "\n".join(lines)
