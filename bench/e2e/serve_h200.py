"""The server's targets on one H200, and the same steps on any machine: makes the model folders, runs a load script
against `fastllm serve`, and says of each target whether it was met.

serve_h200.py --load SERVE_LOAD.py --configs CFG_FOLDER [--out FOLDER] [--only tiny llama31-8b] [--device cuda]
              [--concurrency 1 64 256] [--check]

SERVE_LOAD.py is the load script that measured the peer (closed loop, 128 tokens in, 128 out, token ids, streaming, two
requests a client). CFG_FOLDER holds a config.json for each model; weights are dummies. A tokenizer of bytes and filler
words is made, so that every token has text, as with a real one. Each model runs in a server of its own, which the load
script starts, waits for and stops. Prints the load script's lines, a table of targets, and ends with status 1 when one
is missed and --check was given. With --device cpu targets are shown and never missed: it tries the steps themselves.
"""

import argparse
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys

# model -> (what of a result, concurrency, bound); a bound below 0 is a least value.
TARGETS = {
    "tiny": [
        ("out_tok_s", 64, -40_000),
        ("out_tok_s", 256, -40_000),
        ("itl_p99_ms", 64, 5),
        ("itl_p99_ms", 256, 12),
    ],
    "llama31-8b": [
        ("out_tok_s", 256, -14_000),
        ("ttft_p50_ms", 256, 300),
        ("itl_p99_ms", 256, 25),
        ("ready_s", None, 10),
    ],
}


def write_tokenizer(folder: pathlib.Path, vocab_size: int) -> None:
    """Every token has text: bytes first, then words, which a prompt of ids may hold and an answer shows."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: n for n, text in enumerate(["<unk>", "<s>", "</s>", *alphabet])}
    vocab.update({f"Ġword{n}": n for n in range(len(vocab), vocab_size)})
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))


def make_model(configs: pathlib.Path, name: str, out: pathlib.Path) -> pathlib.Path:
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((configs / name / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, config["vocab_size"])
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_load(name: str, folder: pathlib.Path, args: argparse.Namespace) -> dict:
    """The load script's results: {"ready_s": ..., "rows": [...]}."""
    port, result = free_port(), folder / "result.json"
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    server = [sys.executable, "-m", "fastllm_core", "serve", str(folder), "--load-format", "dummy"]
    server += ["--device", args.device, "--port", str(port), "--served-model-name", name, "--access-log", "off"]
    server += ["--max-model-len", "4096", "--max-num-seqs", "256", *shlex.split(args.serve_args)]
    levels = ",".join(map(str, args.concurrency))
    load = [sys.executable, str(args.load), "--port", str(port), "--model", name, "--name", name, "--json", str(result)]
    load += ["--concurrency", levels, "--vocab", str(vocab), "--cmd", shlex.join(server)]
    load += ["--in", str(args.tokens), "--out", str(args.tokens)]
    with open(folder / "server.log", "w") as log:
        done = subprocess.run(load, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        sys.exit(
            f"the load on {name} ended with status {done.returncode}:\n{(folder / 'server.log').read_text()[-3000:]}"
        )
    return json.loads(result.read_text())


def value_of(result: dict, what: str, concurrency: int | None) -> float | None:
    if what == "ready_s":
        return result["ready_s"]
    for row in result["rows"]:
        if row["concurrency"] == concurrency:
            if row["bad"]:
                return None
            series, place = {"ttft_p50_ms": ("ttft_ms", 0), "itl_p99_ms": ("itl_ms", 1)}.get(what, (what, None))
            return row[series] if place is None else row[series][place]
    return None


def judge(name: str, result: dict) -> list[dict]:
    out = []
    for what, concurrency, bound in TARGETS[name]:
        value = value_of(result, what, concurrency)
        met = value is not None and (value >= -bound if bound < 0 else value <= bound)
        limit = f">= {-bound}" if bound < 0 else f"<= {bound}"
        line = {"model": name, "what": what, "concurrency": concurrency, "value": value, "wanted": limit, "met": met}
        out.append(line)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=pathlib.Path, required=True)
    parser.add_argument("--configs", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/serve_h200"))
    parser.add_argument("--only", nargs="+", choices=sorted(TARGETS), default=["tiny", "llama31-8b"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--tokens", type=int, default=128, help="Of each prompt and of each answer.")
    parser.add_argument("--serve-args", default="", help="More flags for fastllm serve.")
    parser.add_argument("--check", action="store_true", help="Status 1 when a target is missed.")
    args = parser.parse_args()
    lines = []
    for name in args.only:
        folder = make_model(args.configs, name, args.out)
        lines += judge(name, run_load(name, folder, args))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "targets.json").write_text("\n".join(map(json.dumps, lines)) + "\n")
    for line in lines:
        print(json.dumps(line))
    missed = sum(not line["met"] for line in lines)
    print(f"{len(lines) - missed} of {len(lines)} targets met")
    if missed and args.check and args.device != "cpu":
        sys.exit(1)


if __name__ == "__main__":
    main()
