"""fastllm complete: a prompt to a server, streamed to the terminal."""

import sys

from fastllm_core.cli import flags
from fastllm_core.cli.remote import RemoteModel, add_remote_flags
from fastllm_core.cli.stream import Answer

_DEFAULTS = {"max_tokens": 256}


def run(argv: list[str]) -> int:
    flags.prepare_stdout()
    parser = flags.FlagParser("complete", "Continues a prompt by a server and streams the text to the terminal.")
    parser.add_argument("text", nargs="?", metavar="PROMPT", help="The prompt; read from standard input when absent.")
    parser.add_argument("--stats", action="store_true", help="Print token counts and speed to standard error.")
    add_remote_flags(parser, required=True)
    flags.add_sampling_flags(parser, _DEFAULTS)
    args = parser.parse(argv)
    fields = {**_DEFAULTS, **flags.given_sampling(args)}
    flags.sampling_params(parser, args, _DEFAULTS)  # a value outside its limits is a usage error here
    text = args.text if args.text is not None else flags.read_stdin(parser)
    answer = Answer()
    RemoteModel(args).print_answer("/v1/completions", {"prompt": text, **fields}, answer)
    if not answer.text.endswith("\n"):
        print(flush=True)
    if args.stats:
        print(answer.speed(), file=sys.stderr)
    return 0
