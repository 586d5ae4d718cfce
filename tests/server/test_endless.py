"""Requests that last until something ends them: order, time limits, and an engine that a test holds up."""

import threading

from gate import make_gate, open_gate
from server_support import ENDLESS, open_request

COMPLETIONS = "/v1/completions"


def test_priority(single):
    """The lower number goes first, though it came later: the one before it would never end."""
    running = open_request(single, {**ENDLESS, "prompt": [5, 6]})
    single.wait_for("num_requests_running", 1)
    never = open_request(single, {**ENDLESS, "prompt": [7], "priority": 5})
    single.wait_for("num_requests_waiting", 1)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(single.complete([8], 3, priority=1)))
    asking.start()
    single.wait_for("num_requests_waiting", 2)
    running.close()
    asking.join(60)
    assert answers[0]["usage"]["completion_tokens"] == 3
    never.close()
    single.wait_idle()


def test_times_of_a_request(endless, single):
    """timeout_ms is for all of a request, max_queue_time_ms for its wait."""
    slow = endless.post(COMPLETIONS, {**ENDLESS, "prompt": [5], "timeout_ms": 50})
    assert slow.status_code == 504
    assert "50 ms" in slow.json()["error"]["message"]
    with open_request(single, {**ENDLESS, "prompt": [5, 6]}):
        single.wait_for("num_requests_running", 1)
        late = single.post(COMPLETIONS, {"prompt": [5], "max_queue_time_ms": 50})
    assert late.status_code == 503
    assert "50 ms" in late.json()["error"]["message"]
    for server in (endless, single):
        server.wait_idle()


def test_arguments_reach_logits_processors(single, tmp_path):
    """vllm_xargs: the engine stands still at the gate, the server does not, and then the request is answered."""
    gate = make_gate(tmp_path / "gate")
    body = {"prompt": [5, 6], "max_tokens": 4, "ignore_eos": True, "stream": True, "vllm_xargs": {"gate": gate}}
    with single.http() as http, http.stream("POST", COMPLETIONS, json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        assert single.get("/health").status_code == 200
        assert single.metric("num_requests_running") == 1
        open_gate(gate)
        rest = [line for line in lines if line]
    assert '"finish_reason":"length"' in rest[-2]
    assert rest[-1] == "data: [DONE]"
    refused = single.post(COMPLETIONS, {"prompt": [5], "vllm_xargs": {"gaet": gate}})
    assert refused.status_code == 400
    assert "gate" in refused.json()["error"]["message"]
    single.wait_idle()
