"""The command line against a server: complete, chat --url, bench, run-batch, collect-env."""

import json
import os
import subprocess
import sys

import pytest
from server_support import TINY_ARGS

from fastllm_core.bench.load import Seen
from fastllm_core.bench.report import percentile, summary


def fastllm(*args, stdin: str = "", env=None, timeout: int = 300):
    return subprocess.run(
        [sys.executable, "-m", "fastllm_core", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
    )


def test_complete(smollm):
    out = fastllm("complete", "--url", smollm.url, "--temperature", "0", "--max-tokens", "8", "--stats", "1 2 3 4 5")
    assert out.returncode == 0, out.stderr
    assert out.stdout == " 6 7 8 9\n"
    assert "9 prompt tokens" in out.stderr
    assert "8 tokens" in out.stderr


def test_chat_with_a_server(smollm):
    ask = ("chat", "--url", smollm.url, "--temperature", "0", "--max-tokens", "4")
    out = fastllm(*ask, stdin="Say hello.\n/reset\nSay hello.\n/exit\n")
    assert out.returncode == 0, out.stderr
    first, second = out.stdout.splitlines()
    assert first == second != ""
    assert fastllm(*ask, "--block-size", "16").returncode == 2


def test_clients_say_what_is_wrong(tiny):
    for args, words in (
        (("complete", "--url", "http://127.0.0.1:9", "x"), "no server"),
        (("complete", "--url", "ftp://x", "x"), "--url"),
        (("complete", "--url", tiny.url, "--model-name", "other", "x"), "other"),
        (("complete", "--url", tiny.url, "x" * 100_000), "HTTP 400"),
    ):
        out = fastllm(*args)
        assert out.returncode == 1
        assert words in out.stderr
        assert "Traceback" not in out.stderr


def test_bench_serve(tiny, tmp_path):
    path = tmp_path / "figures.json"
    out = fastllm(
        *("bench", "serve", "--url", tiny.url, "--num-prompts", "40", "--input-len", "20", "--output-len", "10"),
        *("--dataset", "shared-prefix", "--prefix-len", "16", "--max-concurrency", "8", "--goodput", "ttft:60000"),
        *("--json", str(path), "--no-progress"),
    )
    assert out.returncode == 0, out.stderr
    figures = json.loads(path.read_text())
    assert (figures["completed"], figures["failed"]) == (40, 0)
    assert (figures["input_tokens"], figures["output_tokens"]) == (800, 400)
    assert figures["request_goodput"] == pytest.approx(figures["request_throughput"])
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        row = figures[name]
        assert 0 <= row["p50"] <= row["p90"] <= row["p99"]
    assert "output_throughput" in out.stdout


def test_bench_serve_over_chat_and_in_time(tiny, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "one"}\n{"prompt": "two", "output_len": 3}\n')
    out = fastllm(
        *("bench", "serve", "--url", tiny.url, "--endpoint", "/v1/chat/completions", "--dataset", "jsonl"),
        *("--dataset-path", str(data), "--num-prompts", "10", "--output-len", "5", "--request-rate", "200"),
        *("--json", str(tmp_path / "f.json"), "--no-progress"),
    )
    assert out.returncode == 0, out.stderr
    assert json.loads((tmp_path / "f.json").read_text())["output_tokens"] == 5 * 5 + 5 * 3


def test_bench_serve_counts_failures(tiny):
    out = fastllm("bench", "serve", "--url", tiny.url, "--num-prompts", "3", "--token-range", "400", "500")
    assert out.returncode == 1
    assert "failed               3" in out.stdout
    assert "HTTP 400" in out.stdout


@pytest.mark.parametrize("what", ["throughput", "latency", "startup"])
def test_bench_of_an_engine(tiny_folder, tmp_path, what):
    path = tmp_path / "figures.json"
    out = fastllm(
        *("bench", what, "--model", tiny_folder, "--load-format", "dummy", "--num-prompts", "8", "--rounds", "2"),
        *("--input-len", "20", "--output-len", "10", "--json", str(path), "--no-progress"),
    )
    assert out.returncode == 0, out.stderr
    figures = json.loads(path.read_text())
    if what == "throughput":
        assert (figures["input_tokens"], figures["output_tokens"]) == (160, 80)
    elif what == "latency":
        assert figures["batch_ms"]["p50"] > 0
    else:
        assert figures["load_s"] > 0


def test_figures_of_a_load():
    seen = [Seen(10, 5, 0.1, [0.1, 0.2, 0.1], 0.5), Seen(10, 1, 0.3, [], 0.3), Seen(error="gone")]
    out = summary(seen, 2.0, {"ttft": 200, "tpot": 150})
    assert (out["completed"], out["failed"], out["output_tokens"]) == (2, 1, 6)
    assert out["request_throughput"] == 1.0
    assert out["request_goodput"] == 0.5
    assert out["tpot_ms"]["mean"] == pytest.approx(100)
    assert out["itl_ms"]["p50"] == pytest.approx(100)
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile([1, 2, 3, 4], 99) == pytest.approx(3.97)


def test_run_batch(tiny_folder, tmp_path):
    """Answers and refusals by custom_id; a second run asks only for what is missing."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5, 6], "max_tokens": 3}},
        {"custom_id": "b", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "x"}]}},
        {"custom_id": "c", "url": "/v1/completions", "body": {"prompt": [999]}},
        {"custom_id": "d", "url": "/v1/completions", "body": {"prompt": "x", "stream": True}},
    ]
    lines[1]["body"]["max_tokens"] = 2
    source.write_text("\n".join(json.dumps(line) for line in lines))
    args = ("run-batch", "-i", str(source), "-o", str(target), "--model", tiny_folder, *TINY_ARGS[:4])
    out = fastllm(*args)
    assert out.returncode == 0, out.stderr
    answers = {a["custom_id"]: a for a in map(json.loads, target.read_text().splitlines())}
    assert {k: a["response"]["status_code"] for k, a in answers.items()} == {"a": 200, "b": 200, "c": 400, "d": 400}
    assert answers["a"]["response"]["body"]["usage"]["completion_tokens"] == 3
    assert answers["a"]["error"] is None
    assert "999" in answers["c"]["error"]["message"]
    whole = target.read_text().splitlines(keepends=True)
    failed = json.loads(whole[2])
    failed["response"]["status_code"] = 503
    # as a run that died leaves it
    target.write_text("".join(whole[:2]) + json.dumps(failed) + "\n" + whole[3][:20])
    again = fastllm(*args)
    assert "2 answered before" in again.stderr
    assert sorted(json.loads(line)["custom_id"] for line in target.read_text().splitlines()) == ["a", "b", "c", "d"]
    assert '"status_code": 503' not in target.read_text()
    assert target.read_text().startswith("".join(whole[:2]))


def test_run_batch_names_a_bad_line(tmp_path, tiny_folder):
    source = tmp_path / "in.jsonl"
    good = '{"custom_id": "a", "url": "/v1/completions", "body": {}}\n'
    for bad in ("{", "[]", '{"custom_id": "b", "url": "/v1/files", "body": {}}', good.strip()):
        source.write_text(good + bad)
        out = fastllm("run-batch", "-i", str(source), "-o", str(tmp_path / "o"), "--model", tiny_folder)
        assert out.returncode == 1
        assert "in.jsonl:2" in out.stderr


def test_collect_env():
    facts = json.loads(fastllm("collect-env", "--json").stdout)
    assert facts["packages"]["torch"]
    assert "cpu" in facts["devices of this build"]
    assert "fastllm_core" in fastllm("collect-env").stdout
