"""fastllm bench: serve (load on a server), throughput, latency, startup (an engine by itself)."""

import asyncio
import json
import os
import sys

from fastllm_core.bench.datasets import DATASETS, make_samples
from fastllm_core.bench.report import parse_goals, summary, table
from fastllm_core.cli import flags
from fastllm_core.errors import InvalidArgumentError

_WHAT = ("serve", "throughput", "latency", "startup")


def run(argv: list[str]) -> int:
    flags.prepare_stdout()
    if not argv or argv[0] not in _WHAT:
        print(
            f"usage: fastllm bench {{{','.join(_WHAT)}}} [options]", file=sys.stdout if "--help" in argv else sys.stderr
        )
        return 0 if "--help" in argv or "-h" in argv else 2
    what, rest = argv[0], argv[1:]
    parser = flags.FlagParser(f"bench {what}", __doc__.split(": ", 1)[1])
    _add_samples(parser, 1000 if what == "serve" else 1 if what == "latency" else 256)
    parser.add_argument("--json", metavar="FILE", help="Write the figures there as well.")
    parser.add_argument("--no-progress", action="store_true", help="Show no progress bar.")
    if what == "serve":
        _add_load(parser)
    else:
        parser.add_argument("--rounds", type=int, default=5, help="Repetitions of latency and startup. (default: 5)")
        flags.add_model_flags(parser)
    args = parser.parse(rest)
    figures = _serve(parser, args) if what == "serve" else _offline(what, parser, args)
    print(table(figures))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
    return 1 if figures.get("failed") else 0


def _add_samples(parser, count: int) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument("--dataset", choices=DATASETS, default="random", help="(default: random)")
    group.add_argument("--dataset-path", help="JSONL for --dataset jsonl: prompt and, optional, output_len.")
    group.add_argument("--num-prompts", type=int, default=count, help=f"(default: {count})")
    group.add_argument("--input-len", type=int, default=128, help="Tokens of a prompt. (default: 128)")
    group.add_argument("--output-len", type=int, default=128, help="Tokens of an answer. (default: 128)")
    group.add_argument("--prefix-len", type=int, default=64, help="Shared tokens for shared-prefix. (default: 64)")
    group.add_argument("--range-ratio", type=float, default=0.0, help="Spread of both lengths, 0 to 1. (default: 0)")
    group.add_argument("--token-range", type=int, nargs=2, default=(100, 300), help="Ids to draw. (default: 100 300)")
    group.add_argument("--seed", type=int, default=0, help="(default: 0)")


def _add_load(parser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--url", default="http://127.0.0.1:8000", help="The server. (default: http://127.0.0.1:8000)")
    group.add_argument("--model", help="A served name; the server's first one by default.")
    group.add_argument("--api-key", help="FASTLLM_API_KEY by default.")
    group.add_argument(
        "--endpoint", choices=("/v1/completions", "/v1/chat/completions"), default="/v1/completions", help="Which API."
    )
    group.add_argument(
        "--request-rate", type=float, help="Requests per second, as a Poisson process; all at once by default."
    )
    group.add_argument(
        "--max-concurrency", type=int, help="Requests at one time: a closed loop without --request-rate."
    )
    group.add_argument("--goodput", nargs="+", default=[], metavar="GOAL", help="ttft:MS, tpot:MS, e2e:MS.")
    group.add_argument("--extra-body", type=json.loads, default={}, help="JSON object with more fields.")


def _serve(parser, args) -> dict:
    from fastllm_core.bench.load import Load, run_load
    from fastllm_core.http_client import HttpClient

    try:
        goals = parse_goals(args.goodput)
    except ValueError as e:
        parser.error(str(e))
    samples = _samples(parser, args)
    if args.request_rate is not None and not args.request_rate > 0:
        parser.error(f"--request-rate must be above 0, got {args.request_rate}")
    client = HttpClient(args.url, args.api_key or os.environ.get("FASTLLM_API_KEY"))

    async def measure():
        model = args.model or (await client.get_json("/v1/models"))["data"][0]["id"]
        load = Load(args.endpoint, model, args.request_rate, args.max_concurrency, args.seed, args.extra_body)
        with _progress(0, True) as quiet:  # one request warms up
            await run_load(client, samples[:1], load, quiet)
        with _progress(len(samples), args.no_progress) as progress:
            return await run_load(client, samples, load, progress)

    seen, seconds = asyncio.run(measure())
    return summary(seen, seconds, goals)


def _offline(what: str, parser, args) -> dict:
    from fastllm_core.bench import offline

    options = {name: value for name, value in flags.engine_options(parser, args).items() if value is not None}
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    if what == "startup":
        return offline.startup(options, args.rounds)
    samples = _samples(parser, args)
    if what == "latency":
        return offline.latency(options, samples, args.rounds)
    return offline.throughput(options, samples, not args.no_progress)


def _samples(parser, args):
    if args.num_prompts < 1:
        parser.error(f"--num-prompts must be at least 1, got {args.num_prompts}")
    if args.dataset == "jsonl" and args.dataset_path is None:
        parser.error("--dataset jsonl needs --dataset-path")
    try:
        return make_samples(args)
    except InvalidArgumentError as e:
        parser.error(str(e))


def _progress(total: int, hidden: bool):
    from tqdm import tqdm

    return tqdm(total=total, unit="request", disable=hidden)
