"""fastllm serve: the HTTP server."""

import importlib.util

from fastllm_core.cli import flags
from fastllm_core.errors import FastLLMError, InvalidArgumentError

# Where somebody reads every token as it comes: beside decodes a step takes no more of the prompts than this, so that a
# burst of prompts does not stop the running streams.
DEFAULTS = {"max_num_mixed_prefill_tokens": 512}


def run(argv: list[str]) -> int:
    parser = flags.FlagParser("serve", "Serves a model over HTTP: OpenAI's and Anthropic's APIs, and a web page.")
    parser.add_argument("served", nargs="?", metavar="MODEL", help="The model, as --model takes it; wins over --model.")
    flags.add_model_flags(parser, beside_sampling=False)
    parser.add_argument(
        "--logits-processors",
        nargs="+",
        action="extend",
        metavar="MODULE:CLASS",
        help="Logits processors in Python; requests reach them through vllm_xargs. (default: none)",
    )
    missing = [name for name in ("fastapi", "uvicorn", "httptools", "prometheus_client") if not _found(name)]
    if missing and not {"-h", "--help"} & set(argv):
        raise FastLLMError(f"serve needs the package {missing[0]}: pip install 'fastllm-core[server]'")
    from fastllm_core.server.config import add_server_flags, server_config

    add_server_flags(parser)
    args = parser.parse(argv)
    if args.served is not None:
        args.model = args.served
    options = {**DEFAULTS, **flags.engine_options(parser, args)}
    from fastllm_core import nodes

    options = nodes.with_environment(options)
    if nodes.follows():
        return nodes.follow()
    if options.get("node_rank", 0) > 0:
        return nodes.run(options)
    if args.logits_processors:
        options["logits_processors"] = args.logits_processors
    try:
        config = server_config(args)
    except InvalidArgumentError as e:
        parser.error(str(e))
    from fastllm_core.server.run import serve

    return serve(options.pop("model"), options, config)


def _found(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
