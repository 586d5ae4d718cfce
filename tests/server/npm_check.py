"""npm_check.mjs against a server on the tiny model; `make test-npm` runs it. Needs node and npm."""

import pathlib
import shutil
import subprocess
import tempfile

from server_support import TINY_ARGS, RunningServer, write_tiny_model

CLIENTS = ("openai@^7", "@anthropic-ai/sdk")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *CLIENTS], cwd=folder, check=True)
        script = shutil.copy(pathlib.Path(__file__).with_name("npm_check.mjs"), folder)
        server = RunningServer(write_tiny_model(pathlib.Path(folder)), *TINY_ARGS, "--access-log", "off")
        try:
            subprocess.run(["node", script, server.url], cwd=folder, check=True)
            server.wait_idle()
        finally:
            server.kill()


if __name__ == "__main__":
    main()
