"""The table of public reports names tests that exist, with one row for each id."""

import pathlib
import re

TESTS = pathlib.Path(__file__).parents[1]


def rows() -> list[list[str]]:
    text = (TESTS / "server" / "README.md").read_text()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| A"]
    assert len(found) > 60
    return found


def test_every_row_has_a_test_that_is_there():
    for number, _, tests, result in rows():
        assert result, number
        for name in re.findall(r"`([^`]+)`", tests):
            file, _, function = name.partition("::")
            path = TESTS / f"{file if '/' in file else 'server/' + file}.py"
            assert path.is_file(), name
            pattern = re.escape(function).replace(re.escape("*"), r"\w+")
            assert not function or re.search(rf"def {pattern}\(", path.read_text()), name


def test_one_row_for_each_id():
    numbers = [row[0] for row in rows()]
    assert numbers == sorted(set(numbers))
    assert set(numbers) == {f"A{n:02}" for n in range(1, 86)} - {"A15"}
