"""python -m fastllm_core is the command fastllm."""

import sys

from fastllm_core.cli import main

sys.exit(main())
