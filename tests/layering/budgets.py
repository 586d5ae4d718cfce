"""Size budgets: lines of a file, lines of a function, data members of a class."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

SOURCE_LINES = 400
HEADER_LINES = 200
HARD_LINES = 800  # no exception goes beyond
FUNCTION_LINES = 60
CLASS_MEMBERS = 12

_RAW_STRING = re.compile(r'R"([^()\\ ]{0,16})\((?:.|\n)*?\)\1"')
_TOKENS = re.compile(
    r"""//[^\n]* | /\*(?:.|\n)*?\*/ | "(?:\\.|[^"\\\n])*" | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""", re.VERBOSE
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_INIT_LIST = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:)")
_NOT_DATA = re.compile(r"^(using|typedef|friend|static|template|enum|class|struct|union|extern|FASTLLM_FIELD)\b")


@dataclass(frozen=True)
class Size:
    """One measured thing: `what` is lines, function:<name> or members:<class>."""

    path: str
    what: str
    size: int
    limit: int


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def strip_cpp(text: str) -> str:
    """The text with comments, literals and preprocessor lines blanked; line numbers stay."""
    text = _RAW_STRING.sub(_blank, text)
    text = _TOKENS.sub(_blank, text)
    return _DIRECTIVE.sub(_blank, text)


def _kind(head: str) -> str:
    """What the brace after `head` opens at namespace or class scope."""
    head = head.strip()
    if re.search(r"\b(namespace|extern)\b[^()]*$", head):
        return "namespace"
    paren = head.find("(")
    keyword = re.search(r"\b(class|struct|union|enum)\b", re.sub(r"template\s*<[^{}]*?>(?=\s)", "", head))
    after_parameters = re.search(r"\)\s*(const|noexcept|override|->.*|&+)*\s*$", head)
    if keyword and (paren < 0 or ("=" not in head and not after_parameters)):
        return "class" if keyword[1] == "class" else "type"
    if paren >= 0:
        before_brace = head.rstrip()[-1:]
        in_init_list = _INIT_LIST.search(head)
        if in_init_list and (before_brace.isalnum() or before_brace in "_>"):
            return "member-init"
        return "initializer" if re.search(r"=\s*$", head) else "function"
    return "initializer"


def _function_name(head: str) -> str:
    test = re.search(r"\b(?:TEST|TEST_F|TEST_P)\s*\(\s*(\w+)\s*,\s*(\w+)", head)
    if test:
        return f"{test[1]}.{test[2]}"
    name = re.search(r"([~\w:]+(?:\s*\(\s*\))?|operator\s*\S+?)\s*\(", head)
    return re.sub(r"\s+", "", name[1]) if name else "?"


def _class_name(head: str) -> str:
    names = re.search(r"\bclass\b((?:\s+|\[\[\w+\]\])*[\w\s]*)", head)
    words = [w for w in names[1].split() if w not in ("final", "FASTLLM_API")] if names else []
    return words[-1] if words else "?"


def _count_members(statement: str) -> int:
    """Data members that one statement at class scope declares."""
    text = re.sub(r"\b(public|private|protected)\s*:", "", statement).strip()
    text = re.sub(r"\[\[.*?\]\]|\balignas\s*\([^()]*\)", "", text).strip()
    if not text or _NOT_DATA.match(text):
        return 0
    for _ in range(8):  # innermost first
        text = re.sub(r"<[^<>]*>", "", text)
    text = text.split("=", 1)[0] if "," not in text else text
    if "(" in text.split("=", 1)[0]:
        return 0
    return 1 + text.count(",")


def cpp_sizes(path: str, text: str) -> list[Size]:
    """Functions (lambdas belong to the function around them) and classes of one C++ file."""
    code = strip_cpp(text)
    sizes: list[Size] = []
    stack: list[dict] = []  # open braces: kind, first line, name, members
    head_start, line = 0, 1
    for index, char in enumerate(code):
        if char == "\n":
            line += 1
        if char not in "{};":
            continue
        at_scope = not stack or stack[-1]["kind"] in ("namespace", "class", "type")
        head = code[head_start:index]
        if char == "{":
            kind = _kind(head) if at_scope else "block"
            name = _function_name(head) if kind == "function" else _class_name(head) if kind == "class" else ""
            stack.append({"kind": kind, "line": line, "name": name, "members": 0})
            if kind not in ("initializer", "member-init"):
                head_start = index + 1
        elif char == "}":
            if not stack:
                continue
            top = stack.pop()
            if top["kind"] == "function":
                sizes.append(Size(path, f"function:{top['name']}", line - top["line"] + 1, FUNCTION_LINES))
            elif top["kind"] == "class":
                sizes.append(Size(path, f"members:{top['name']}", top["members"], CLASS_MEMBERS))
            if top["kind"] not in ("initializer", "member-init"):
                head_start = index + 1
        elif at_scope:
            if stack and stack[-1]["kind"] == "class":
                flat = re.sub(r"\{[^{}]*\}", "", head)
                stack[-1]["members"] += _count_members(flat)
            head_start = index + 1
    return sizes


def python_sizes(path: str, text: str) -> list[Size]:
    """Functions of one Python file, decorators and docstring left out."""
    sizes = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
            first = body[0].lineno
            sizes.append(Size(path, f"function:{node.name}", (node.end_lineno or first) - first + 2, FUNCTION_LINES))
    return sizes


def file_sizes(path: str, text: str) -> list[Size]:
    lines = text.count("\n")
    if path.endswith(".py"):
        return [Size(path, "lines", lines, SOURCE_LINES), *python_sizes(path, text)]
    limit = HEADER_LINES if path.endswith((".h", ".cuh")) else SOURCE_LINES
    return [Size(path, "lines", lines, limit), *cpp_sizes(path, text)]


def parse_exceptions(text: str) -> dict[tuple[str, str], int]:
    """(path, what) → accepted size. Every entry carries a reason; lines never pass HARD_LINES."""
    accepted: dict[tuple[str, str], int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        if not raw.strip() or raw.startswith("#"):
            continue
        words = raw.split(None, 3)
        if len(words) < 4 or not words[2].isdigit():
            raise ValueError(f"exceptions.txt:{number}: want <path> <what> <limit> <reason>, got {raw!r}")
        if words[1] == "lines" and int(words[2]) > HARD_LINES:
            raise ValueError(f"exceptions.txt:{number}: {words[2]} lines; the hard limit is {HARD_LINES}")
        accepted[words[0], words[1]] = int(words[2])
    return accepted


def over_budget(sizes: list[Size], accepted: dict[tuple[str, str], int]) -> list[str]:
    """Offences, and exceptions that nothing needs any more."""
    offences, used = [], set()
    for s in sizes:
        if s.size <= s.limit:
            continue
        key = (s.path, s.what)
        used.add(key)
        if s.size > accepted.get(key, 0):
            offences.append(f"{s.path}: {s.what} is {s.size}, the budget is {accepted.get(key, s.limit)}")
    idle = [key for key in accepted if key not in used]
    offences += [f"{path} {what}: this exception is no longer needed" for path, what in idle]
    return offences
