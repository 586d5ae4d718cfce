"""schemathesis over openapi.json, bounded, and `promtool check metrics`: schema_check.py [PROMTOOL].

Not among the tests that `make test` runs, for their tools are large; `make test-schema` installs and runs them. Every
operation gets generated bodies, right and wrong ones; none may be answered with a status of 500 or above, and the
server is whole afterwards.
"""

import pathlib
import subprocess
import sys
import tempfile

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from server_support import TINY_ARGS, RunningServer, write_tiny_model

EXAMPLES = 30


def fuzz(server: RunningServer) -> int:
    """The number of requests; fails at the first answer of 500 or above."""
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    return sum(_fuzz_one(result.ok()) for result in schema.get_all_operations())


def _fuzz_one(operation) -> int:
    seen: dict[int, int] = {}

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @given(case=operation.as_strategy())
    def run(case):
        status = case.call(timeout=60).status_code
        seen[status] = seen.get(status, 0) + 1
        assert status < 500, (operation.label, status, case.body)

    run()
    print(f"{operation.label}: {seen}", flush=True)
    return sum(seen.values())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(pathlib.Path(folder))
        server = RunningServer(model, *TINY_ARGS, "--max-tokens-cap", "20", "--access-log", "off")
        try:
            requests = fuzz(server)
            server.wait_idle()
            if len(sys.argv) > 1:
                checked = subprocess.run(
                    [sys.argv[1], "check", "metrics"], input=server.get("/metrics").text, capture_output=True, text=True
                )
                print("promtool:", (checked.stdout + checked.stderr).strip() or "clean")
                assert checked.returncode == 0
            assert server.get("/health").status_code == 200
        finally:
            server.kill()
    print(f"{requests} requests, none of them a server's error")
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
