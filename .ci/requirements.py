"""Prints the requirements of one extra of pyproject.toml, one a line: requirements.py test

Reads the list with a small pattern, not with tomllib, because Python 3.10 has none.
"""

import re
import sys
from pathlib import Path

text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text()
section = text.split("[project.optional-dependencies]", 1)[1].split("\n[", 1)[0]
found = re.search(rf"^{re.escape(sys.argv[1])} = \[(.*?)\]$", section, re.DOTALL | re.MULTILINE)
if not found:
    sys.exit(f"pyproject.toml has no extra {sys.argv[1]!r}")
print("\n".join(re.findall(r'"([^"]+)"', found[1])))
