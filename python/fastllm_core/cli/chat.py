"""fastllm chat: a conversation in the terminal."""

import contextlib
import sys
from collections.abc import Callable

from fastllm_core.cli import flags
from fastllm_core.cli.remote import RemoteModel, add_remote_flags
from fastllm_core.cli.stream import Answer, Model, print_answer
from fastllm_core.errors import ChatTemplateError, EngineDeadError, FastLLMError

_DEFAULTS = {"max_tokens": None}
_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


def run(argv: list[str]) -> int:
    flags.prepare_stdout()
    parser = flags.FlagParser("chat", "Talks with a model. " + _HELP)
    parser.add_argument("--system", help="System message.")
    parser.add_argument("--stats", action="store_true", help="Print token counts and speed after each answer.")
    add_remote_flags(parser, required=False)
    flags.add_model_flags(parser)
    flags.add_sampling_flags(parser, _DEFAULTS)
    args = parser.parse(argv)
    params = flags.sampling_params(parser, args, _DEFAULTS)
    if params.n != 1:
        parser.error(f"a conversation goes on with one answer: --n must be 1, got {params.n}")
    if args.url is not None:
        return _chat_with_server(parser, args)
    options = flags.engine_options(parser, args)
    model = Model(**options)
    try:
        if model.tokenizer.chat_template is None:
            raise ChatTemplateError(f"{args.model} has no chat template; use fastllm generate")

        def ask(messages: list[dict], answer: Answer) -> None:
            ids = model.tokenizer.apply_chat_template(messages, tokenize=True)
            print_answer(model, {"prompt_token_ids": ids}, params, answer)

        _Conversation(ask, args.system, args.stats).loop()
    finally:
        model.shutdown()
    return 0


def _chat_with_server(parser: flags.FlagParser, args) -> int:
    if local := flags.given_engine(args):
        parser.error(f"--url and --{next(iter(local)).replace('_', '-')} do not go together: the server has its engine")
    model = RemoteModel(args)
    fields = flags.given_sampling(args)

    def ask(messages: list[dict], answer: Answer) -> None:
        model.print_answer("/v1/chat/completions", {"messages": messages, **fields}, answer)

    _Conversation(ask, args.system, args.stats).loop()
    return 0


class _Conversation:
    """`ask` prints the answer to a list of messages and fills an Answer."""

    def __init__(self, ask: Callable[[list[dict], Answer], None], system: str | None, stats: bool):
        self._ask = ask
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._start)
        self._stats = stats
        self._terminal = sys.stdin.isatty()

    def loop(self) -> None:
        if self._terminal:
            _enable_line_editing()
            print(_HELP)
        while (line := self._read()) is not None:
            word = line.strip()
            if word == "/exit":
                return
            if word == "/reset":
                self._messages = list(self._start)
            elif word.startswith("/"):
                print(f"unknown command {word}. {_HELP}", file=sys.stderr)
            elif word:
                self._turn(line)

    def _read(self) -> str | None:
        """The next line; None at the end."""
        while True:
            try:
                return input("> " if self._terminal else "")
            except EOFError:
                if self._terminal:
                    print()
                return None
            except KeyboardInterrupt:
                if not self._terminal:
                    raise
                print("\n" + _HELP)

    def _turn(self, line: str) -> None:
        """One question and its answer. A question that cannot be asked leaves the conversation as it was."""
        messages = [*self._messages, {"role": "user", "content": line}]
        answer = Answer()
        try:
            self._ask(messages, answer)
        except KeyboardInterrupt:
            answer.finish_reason = "abort"
            print(" [stopped]", end="")
        except EngineDeadError:
            raise
        except FastLLMError as e:
            print(f"error: {e} (/reset starts anew)", file=sys.stderr)
            return
        print(flush=True)
        if self._stats:
            print(answer.speed(), file=sys.stderr)
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]


def _enable_line_editing() -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() uses it once it is imported
