"""Words and habits that hide unfinished work: marker words, commented-out or skipped tests, eager torch imports."""

from __future__ import annotations

import ast
import re

# Spelled in pieces so that this file passes its own check.
MARKERS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK"]) + r")\b")
DEAD_CMAKE = re.compile(r"^\s*#+\s*(add_test|fastllm_test|add_subdirectory|gtest_discover_tests)\s*\(\s*[\w$\"]")
DEAD_CPP = re.compile(r"^\s*//+\s*(TEST|TEST_F|TEST_P)\s*\(\s*\w")
DEAD_PYTHON = re.compile(r"^\s*#+\s*(async\s+)?def\s+test_\w+\s*\(")
SKIPPED_CPP = re.compile(r"\bGTEST_" + r"SKIP\b|\bDIS" + r"ABLED_\w")
SKIPPED_PYTHON = re.compile(r"\bpytest\.(mark\.)?(skip|skipif|xfail|importorskip)\b")


def check_text(path: str, text: str) -> list[str]:
    cmake = path.endswith(("CMakeLists.txt", ".cmake"))
    python = path.endswith(".py")
    patterns = [(MARKERS, "marker word")]
    if cmake:
        patterns.append((DEAD_CMAKE, "commented-out test"))
    elif python:
        patterns += [(DEAD_PYTHON, "commented-out test"), (SKIPPED_PYTHON, "skipped test")]
    elif path.endswith((".cc", ".cu", ".h", ".cuh")):
        patterns += [(DEAD_CPP, "commented-out test"), (SKIPPED_CPP, "skipped test")]
    return [
        f"{path}:{number}: {what}: {line.strip()[:80]}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern, what in patterns
        if pattern.search(line)
    ]


def eager_imports(path: str, text: str, modules: tuple[str, ...] = ("torch", "transformers")) -> list[str]:
    """Imports of heavy modules that run when the file is imported: everything outside a function body."""
    offences = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.orelse:
                visit(child)
            return
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        heavy = [n for n in names if n.split(".")[0] in modules]
        offences.extend(f"{path}:{node.lineno}: imports {n} at import time" for n in heavy)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(text))
    return offences
