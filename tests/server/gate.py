"""A logits processor that makes the engine stand still until a test lets it go on: `--logits-processors gate:Gate`."""

import os
import pathlib

from fastllm_core.logits_processor import AdapterLogitsProcessor

GATE_ARGS = ("--logits-processors", "gate:Gate")
_PATH = (str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH"))
GATE_ENV = {"PYTHONPATH": os.pathsep.join(filter(None, _PATH))}


class Gate(AdapterLogitsProcessor):
    """A request with vllm_xargs {"gate": PATH} makes the engine wait, at its second token, for somebody to write to the
    named pipe PATH. The interpreter is free meanwhile."""

    arg_names = ("gate",)

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params):
        path = params.extra_args["gate"]

        def wait(output_ids, logits):
            if len(output_ids) == 1:
                with open(path, "rb") as pipe:
                    pipe.read(1)
            return logits

        return wait


def make_gate(path) -> str:
    os.mkfifo(path)
    return str(path)


def open_gate(path: str) -> None:
    """Lets the engine go on, when it has come there."""
    with open(path, "wb") as pipe:
        pipe.write(b"x")
