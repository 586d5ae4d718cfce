"""fastllm generate: one prompt, streamed to the terminal."""

import sys

from fastllm_core.cli import flags
from fastllm_core.cli.stream import Answer, Model, print_answer, print_outputs

_DEFAULTS = {"max_tokens": 256}


def run(argv: list[str]) -> int:
    flags.prepare_stdout()
    parser = _parser()
    args = parser.parse(argv)
    options = flags.engine_options(parser, args)
    params = flags.sampling_params(parser, args, _DEFAULTS)
    text = _prompt(parser, args)
    model = Model(**options)
    try:
        answer = Answer()
        show = print_answer if params.n == 1 else print_outputs
        show(model, _request(model, text, args), params, answer)
        if not answer.text.endswith("\n"):
            print(flush=True)
        if args.stats:
            print(answer.speed(), file=sys.stderr)
    finally:
        model.shutdown()
    return 0


def _parser() -> flags.FlagParser:
    parser = flags.FlagParser("generate", "Continues a prompt and streams the text to the terminal.")
    parser.add_argument("text", nargs="?", metavar="PROMPT", help="The prompt; read from standard input when absent.")
    parser.add_argument("--prompt", help="The prompt, as a flag.")
    parser.add_argument("--chat", action="store_true", help="Ask the prompt as a user of the chat template.")
    parser.add_argument("--system", help="System message; implies --chat.")
    parser.add_argument("--stats", action="store_true", help="Print token counts and speed to standard error.")
    flags.add_model_flags(parser)
    flags.add_sampling_flags(parser, _DEFAULTS)
    return parser


def _prompt(parser: flags.FlagParser, args) -> str:
    if args.text is not None and args.prompt is not None:
        parser.error("the prompt is given twice, as an argument and as --prompt")
    for given in (args.text, args.prompt):
        if given is not None:
            return given
    if sys.stdin.isatty():
        parser.error("no prompt: give it as an argument, as --prompt, or on standard input")
    return flags.read_stdin(parser)


def _request(model: Model, text: str, args) -> dict:
    if not args.chat and args.system is None:
        return {"prompt": text}
    messages = [] if args.system is None else [{"role": "system", "content": args.system}]
    messages.append({"role": "user", "content": text})
    return {"prompt_token_ids": model.tokenizer.apply_chat_template(messages, tokenize=True)}
