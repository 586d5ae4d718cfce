"""Metrics, traces, logs, and what else a server says of itself."""

import http.server
import json
import re
import threading
from typing import ClassVar

import pytest

COMPLETIONS = "/v1/completions"
IDS = [10, 20, 30]


def samples(text: str) -> dict[str, float]:
    """Every sample by its name and labels."""
    out = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in out, f"{name} is there twice"
            out[name] = float(value)
    return out


def test_counters_are_the_clients_sums(tiny):
    names = ("prompt_tokens_total", "generation_tokens_total", "request_generation_tokens_count")
    before = [tiny.metric(n) for n in names]
    finished = tiny.metric("request_success_total", finished_reason="length")
    for length in (1, 5, 9):
        tiny.complete(IDS, length)
    assert [tiny.metric(n) - b for n, b in zip(names, before)] == [9, 15, 3]
    assert tiny.metric("request_success_total", finished_reason="length") - finished == 3
    assert tiny.metric("num_requests_running") == tiny.metric("num_requests_waiting") == 0


def test_histograms_are_whole(tiny):
    """Buckets only grow, the last one is +Inf and equals the count; counters end in _total."""
    tiny.complete(IDS, 4)
    text = tiny.get("/metrics").text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    all_samples = samples(text)
    for name, kind in kinds.items():
        if kind == "counter":
            assert name.endswith("_total")
        if kind != "histogram":
            continue
        buckets = [(k, v) for k, v in all_samples.items() if k.startswith(name + "_bucket{")]
        assert [v for _, v in buckets] == sorted(v for _, v in buckets)
        assert 'le="+Inf"' in buckets[-1][0]
        assert buckets[-1][1] == next(v for k, v in all_samples.items() if k.startswith(name + "_count{"))


def test_families_of_vllm(tiny, start_server):
    """The names that dashboards in the field use, under our prefix and under theirs."""
    wanted = """
        num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total
        generation_tokens_total prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total
        request_success_total time_to_first_token_seconds inter_token_latency_seconds
        e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds
        request_decode_time_seconds request_inference_time_seconds request_prompt_tokens
        request_generation_tokens request_params_n request_params_max_tokens cache_config_info
    """.split()
    theirs = start_server("--metrics-prefix", "vllm")
    for server, prefix in ((tiny, "fastllm_"), (theirs, "vllm:")):
        text = server.get("/metrics").text
        for name in wanted:
            assert f"# TYPE {prefix}{name} " in text, name
    theirs.kill()


def test_rejections_are_counted(tiny):
    before = tiny.metric("admission_rejections_total", reason="400")
    tiny.post(COMPLETIONS, {"prompt": []})
    assert tiny.metric("admission_rejections_total", reason="400") == before + 1


def test_dashboard_uses_families_that_exist(tiny):
    import pathlib

    import fastllm_core.server

    path = pathlib.Path(fastllm_core.server.__file__).with_name("grafana_dashboard.json")
    board = json.loads(path.read_text())
    used = set(re.findall(r"fastllm_[a-z_0-9]+", json.dumps(board)))
    assert len(used) > 10
    text = tiny.get("/metrics").text
    missing = [name for name in used if f"{name}{{" not in text]
    assert missing == []


class Collector(http.server.BaseHTTPRequestHandler):
    bodies: ClassVar[list[bytes]] = []
    came = threading.Event()

    def do_POST(self):
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()
        self.came.set()

    def log_message(self, *args):
        pass


def test_traces(start_server):
    """One span per request arrives by OTLP, below the caller's trace."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ours = start_server("--otlp-traces-endpoint", f"http://127.0.0.1:{server.server_port}/v1/traces")
    trace = "0af7651916cd43dd8448eb211c80319c"
    ours.post(COMPLETIONS, {"prompt": IDS}, headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    assert ours.stop() == 0  # sends what is left
    assert Collector.came.wait(60)
    data = b"".join(Collector.bodies)
    assert b"llm_request" in data
    assert bytes.fromhex(trace) in data
    assert b"gen_ai.usage.completion_tokens" in data
    server.shutdown()


@pytest.mark.parametrize("level", ["params", "full"])
def test_log_of_requests(start_server, level):
    server = start_server("--log-requests", level)
    server.post(COMPLETIONS, {"prompt": "secret words", "max_tokens": 3, "stop": ["private"]})
    line = server.wait_line('request {"id"')
    assert '"max_tokens": 3' in line
    assert ("secret words" in line) == ("private" in line) == (level == "full")
    server.kill()


def test_small_routes(tiny):
    assert tiny.get("/version").json().keys() == {"version"}
    assert tiny.get("/ping").status_code == tiny.post("/ping").status_code == 200
    assert tiny.get("/load").json() == {"server_load": 0}
    assert tiny.get("/health").json() == {"status": "ok"}


def test_page_is_plain_files(tiny):
    page = tiny.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        if name != "data:,":
            assert "//" not in name
            assert tiny.get("/" + name).status_code == 200
