"""Include edges: which room a file belongs to, what it includes, and whether allowed_edges.txt permits it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
SOURCE_SUFFIXES = {".h", ".cc", ".cpp", ".def", ".cu", ".cuh"}

STD = set(
    """
    algorithm any array atomic barrier bit bitset charconv chrono codecvt compare complex concepts
    condition_variable coroutine deque exception execution filesystem format forward_list fstream functional
    future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
    memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string
    string_view syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set
    utility valarray variant vector version cassert cctype cerrno cfenv cfloat cinttypes climits clocale cmath
    csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype
    """.split()
)
POSIX = re.compile(r"^(sys/\w+\.h|unistd\.h|fcntl\.h|poll\.h|pthread\.h|sched\.h|dlfcn\.h|errno\.h|signal\.h)$")


@dataclass
class Rules:
    """The parsed allowed_edges.txt."""

    edges: dict[str, set[str]] = field(default_factory=dict)
    external: dict[str, list[str]] = field(default_factory=dict)
    banned: set[str] = field(default_factory=set)


def parse_rules(text: str) -> Rules:
    rules = Rules()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        key, colon, rest = line.partition(":")
        if not colon:
            raise ValueError(f"allowed_edges.txt:{number}: no colon in {raw!r}")
        words = rest.split()
        if key == "banned":
            rules.banned.update(words)
        elif key.startswith("external "):
            rules.external[key.split()[1]] = words
        elif key in rules.edges:
            raise ValueError(f"allowed_edges.txt:{number}: room {key!r} is listed twice")
        else:
            rules.edges[key] = set(words)
    return rules


def cycle(rules: Rules) -> list[str] | None:
    """Rooms that include each other in a circle, or None. Edges to a single header are not edges to its room."""
    done: set[str] = set()

    def visit(room: str, path: list[str]) -> list[str] | None:
        if room in path:
            return [*path[path.index(room) :], room]
        if room in done:
            return None
        for target in sorted(t for t in rules.edges.get(room, ()) if not t.endswith(".h")):
            if found := visit(target, [*path, room]):
                return found
        done.add(room)
        return None

    for room in rules.edges:
        if found := visit(room, []):
            return found
    return None


def room_of(path: str) -> str:
    """Room of a file given by its path from the repository root: core/kv, include, cuda/launch, api."""
    parts = PurePosixPath(path).parts
    if parts[0] == "cpp":
        parts = parts[1:]
    if parts[0] == "include":
        return "include"
    return "/".join(parts[:-1][:2])


def included_path(name: str) -> str:
    """Path from the repository root of a header of ours, as it is written in an #include."""
    if name.startswith("fastllm/"):
        return "cpp/include/" + name
    return name if name.startswith("cuda/") else "cpp/" + name


def allowed_external(room: str, name: str, rules: Rules) -> bool:
    ring = room
    while ring and ring not in rules.external:
        ring = ring.rpartition("/")[0]
    for word in rules.external.get(ring, ()):
        if word == "std":
            ok = name in STD
        elif word == "posix":
            ok = bool(POSIX.match(name))
        else:
            ok = name.startswith(word)
        if ok:
            return True
    return False


def check_include(path: str, quote: str, name: str, rules: Rules) -> str | None:
    """The offence of one #include of the file `path`, or None."""
    room = room_of(path)
    if name in rules.banned:
        return f"{path}: <{name}> is banned everywhere: it multiplies compile time; include the op's own header"
    if quote == "<":
        if allowed_external(room, name, rules):
            return None
        return f"{path}: room {room} may not include <{name}>"
    if name.startswith("."):
        return f'{path}: "{name}": write includes from cpp/, not relative to the file'
    if room not in rules.edges:
        return f"{path}: room {room} is not in allowed_edges.txt"
    target = room_of(included_path(name))
    if target == room or target in rules.edges[room] or name in rules.edges[room]:
        return None
    return f'{path}: room {room} may not include "{name}" (room {target})'


def check_text(path: str, text: str, rules: Rules) -> list[str]:
    found = (check_include(path, m[1], m[2], rules) for m in INCLUDE.finditer(text))
    return [offence for offence in found if offence]


def source_files(root: Path) -> list[Path]:
    """Every C++ and CUDA file of the product, cuda/lab (experiments that are never linked) left out."""
    files = [p for top in ("cpp", "cuda") for p in (root / top).rglob("*") if p.suffix in SOURCE_SUFFIXES]
    return sorted(p for p in files if "lab" not in p.relative_to(root).parts)
