"""Text that comes in increments against the one-shot decode of the library that each tokenizer comes from."""

import random

import pytest
from fastllm_core._C import _core_testing as T
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trained_tokenizers import MAKERS, Kind

from fastllm_core import SamplingParams
from fastllm_core.tokenizer.stream import LibraryTextStream

KINDS = ["smollm2", *(maker.__name__ for maker in MAKERS)]
BY_LIBRARY = {"bpe_suffix"}  # decoders that the engine's table cannot express


@pytest.fixture(scope="session")
def kinds(tmp_path_factory, tokenizer) -> dict[str, Kind]:
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {maker.__name__: maker(folder / maker.__name__) for maker in MAKERS}
    backend = tokenizer._backend
    made["smollm2"] = Kind(tokenizer, lambda ids, skip: backend.decode(list(ids), skip_special_tokens=skip))
    return made


class Stream:
    """The text stream of one request, whichever side makes it."""

    def __init__(self, tokenizer, prompt=(), **params):
        params = SamplingParams(**params)
        table = tokenizer.token_table()
        self._engine = T.TextStream(table, list(prompt), params) if table is not None else None
        self._library = LibraryTextStream(tokenizer, list(prompt), params) if table is None else None

    def append(self, ids: list[int], last: bool) -> tuple[str, list[int], str | None]:
        if self._engine is not None:
            u = self._engine.append(ids, "length" if last else "")
            return u.text, u.text_offsets, u.stop_string
        return self._library.append(ids, "length" if last else None)


def run(tokenizer, ids, cuts=None, **params) -> tuple[str, list[int], str | None]:
    """(text, offsets, stop string) of ids in the portions that end at `cuts`; one by one by default."""
    stream = Stream(tokenizer, **params)
    text, offsets, stop = "", [], None
    ends = sorted({*(range(1, len(ids)) if cuts is None else cuts), len(ids)})
    for begin, end in zip([0, *ends], ends):
        part, more, stop = stream.append(list(ids[begin:end]), end == len(ids))
        text, offsets = text + part, offsets + more
        if stop is not None:
            break
    return text, offsets, stop


@st.composite
def cut_ids(draw, ids: list[int]):
    """Ids, and the places where they are cut into portions."""
    chosen = draw(st.lists(st.sampled_from(ids), min_size=1, max_size=40))
    cuts = draw(st.sets(st.integers(1, len(chosen)), max_size=8))
    return chosen, cuts


@pytest.mark.parametrize("name", KINDS)
def test_who_makes_the_text(kinds, name):
    assert (kinds[name].tokenizer.token_table() is None) == (name in BY_LIBRARY)


@pytest.mark.parametrize("name", KINDS)
def test_random_ids(kinds, name):
    kind = kinds[name]

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(cut_ids(kind.ids), st.sampled_from(kind.skips))
    def check(drawn, skip):
        ids, cuts = drawn
        expected = kind.decode(ids, skip)
        assert kind.tokenizer.decode(ids, skip_special_tokens=skip) == expected
        alone = run(kind.tokenizer, ids, skip_special_tokens=skip)
        together = run(kind.tokenizer, ids, cuts, skip_special_tokens=skip)
        assert alone == together
        assert alone[0] == expected

    check()


@pytest.mark.parametrize("name", KINDS)
def test_every_id_alone_and_in_pairs(kinds, name):
    kind = kinds[name]
    rng = random.Random(name)
    sample = rng.sample(kind.ids, min(len(kind.ids), 3 if len(kind.ids) > 10000 else 25))
    for skip in kind.skips:
        wrong = []
        for i in kind.ids:
            for ids in ([i], *([i, s] for s in sample), *([s, i] for s in sample)):
                text = run(kind.tokenizer, ids, skip_special_tokens=skip)[0]
                if text != kind.decode(ids, skip):
                    wrong.append((ids, text, kind.decode(ids, skip)))
        assert not wrong, (skip, len(wrong), wrong[:5])


def byte_ids(kind: Kind) -> dict[int, int]:
    """The ids of single bytes; all 256 but in SmolLM2's vocabulary, which lacks some that no text has."""
    pieces, special = kind.tokenizer._pieces()
    model = getattr(kind.tokenizer, "_model", None)
    is_byte = kind.tokenizer._table_options().get("byte_token")
    if model is not None:
        is_byte = [i < model.vocab_size() and model.is_byte(i) for i in range(len(pieces))]
    elif is_byte is None:
        is_byte = [len(p) == 1 and not s for p, s in zip(pieces, special)]
    return {pieces[i][0]: i for i in range(len(pieces)) if is_byte[i]}


BYTE_KINDS = ["smollm2", "byte_level", "byte_fallback", "sentencepiece_model", "sentencepiece_that_removes_spaces"]


@pytest.mark.parametrize("name", BYTE_KINDS)
def test_all_single_bytes_and_pairs_of_bytes(kinds, name):
    kind = kinds[name]
    ids = byte_ids(kind)
    table = kind.tokenizer.token_table()
    assert len(ids) == 256 or (name == "smollm2" and len(ids) > 230)
    wrong = [b for b in ids if run(kind.tokenizer, [ids[b]])[0] != kind.decode([ids[b]], True)]
    for a in ids:
        for b in ids:
            pair = [ids[a], ids[b]]
            if table.decode(pair) != kind.decode(pair, True):
                wrong.append((a, b))
    assert not wrong, wrong[:10]


@pytest.mark.parametrize("name", BYTE_KINDS)
def test_random_bytes_among_tokens(kinds, name):
    """Bytes that make characters, break them, and are cut off by other tokens."""
    kind = kinds[name]
    ids = byte_ids(kind)
    likely = [ids[b] for b in [*"é日😀".encode(), 0x80, 0xBF, 0xC0, 0xE0, 0xED, 0xF4, 0xFF, 0x20, 0x41] if b in ids]

    hidden = next(i for i in kind.ids if kind.tokenizer._pieces()[1][i])  # a token that is left out, among bytes

    @settings(max_examples=600, deadline=None, derandomize=True)
    @example([ids[0xC3], hidden, ids[0xA9]])
    @given(
        st.lists(
            st.one_of(st.sampled_from(likely), st.sampled_from(list(ids.values())), st.sampled_from(kind.ids)),
            max_size=30,
        )
    )
    def check(chosen):
        assert run(kind.tokenizer, chosen)[0] == kind.decode(chosen, True)

    check()


@pytest.mark.parametrize("name", KINDS)
def test_after_a_prompt(kinds, name):
    """The output of a prompt that has text goes on where that ended."""
    kind = kinds[name]
    whole = [i for i in kind.ids if "\ufffd" not in kind.decode([i], True) and kind.decode([i], True).strip()]
    bytes_alone = set(byte_ids(kind).values()) if name in BYTE_KINDS else set()
    whole = [i for i in whole if i not in bytes_alone]

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(st.lists(st.sampled_from(whole), min_size=1, max_size=6), st.lists(st.sampled_from(whole), max_size=20))
    def check(prompt, ids):
        both, before = kind.decode(prompt + ids, True), kind.decode(prompt, True)
        assert both.startswith(before)
        stream = Stream(kind.tokenizer, prompt)
        assert "".join(stream.append([i], False)[0] for i in ids) + stream.append([], True)[0] == both[len(before) :]

    check()


@pytest.mark.parametrize("name", [k for k in KINDS if k not in BY_LIBRARY])
def test_offsets_are_where_the_text_of_a_token_begins(kinds, name):
    kind = kinds[name]
    pieces, special = kind.tokenizer._pieces()

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(cut_ids(kind.ids))
    def check(drawn):
        ids, _ = drawn
        text, offsets, _ = run(kind.tokenizer, ids)
        assert offsets == kind.tokenizer.token_table().text_offsets(ids)
        assert offsets == sorted(offsets)
        for at, i in list(zip(offsets, ids))[1:]:
            try:
                own = pieces[i].decode()
            except UnicodeDecodeError:
                continue
            if len(own) > 1 and not special[i] and text[:at]:
                assert text[at : at + len(own)] == own

    check()


def first_completed(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(where the match begins, stop string) by the definition: the first to end, then the first in the list."""
    found = [(text.find(s) + len(s), n) for n, s in enumerate(stops) if s in text]
    if not found:
        return None
    end, n = min(found)
    return end - len(stops[n]), stops[n]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_do_not_depend_on_how_tokens_arrive(kinds, name, include):
    kind = kinds[name]

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(cut_ids(kind.ids), st.data())
    def check(drawn, data):
        ids, cuts = drawn
        text = kind.decode(ids, True)
        stops = data.draw(st.lists(st.text("ab .é日\ufffd", min_size=1, max_size=3), max_size=2))
        for _ in range(data.draw(st.integers(0, 2))):  # stop strings that are there
            if text:
                begin = data.draw(st.integers(0, len(text) - 1))
                stops.insert(0, text[begin : begin + data.draw(st.integers(1, 6))])
        params = {"stop": stops, "include_stop_str_in_output": include}
        match = first_completed(text, stops)
        expected = (text, None) if match is None else (text[: match[0]] + (match[1] if include else ""), match[1])
        for got in (run(kind.tokenizer, ids, **params), run(kind.tokenizer, ids, cuts, **params)):
            assert (got[0], got[2]) == expected

    check()


def test_spaces_between_special_tokens(kinds):
    kind = kinds["wordpiece"]
    t = kind.tokenizer
    ids = t.encode("the fox") + [1, 2, 1] + t.encode("dog") + [2]
    spaced = {"skip_special_tokens": False}
    joined = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    assert t.decode(ids, **spaced) == kind.decode(ids, False) == "the fox <s> </s> <s> dog </s>"
    assert t.decode(ids, **joined) == run(t, ids, **joined)[0] == "the fox <s></s><s> dog </s>"
    assert t.decode(ids, True, False) == kind.decode(ids, True)


def test_spaces_between_special_tokens_by_the_library(kinds):
    t = kinds["bpe_suffix"].tokenizer
    ids = t.encode("the fox") + [1, 2] + t.encode("dog") + [99999]
    joined = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    # This decoder puts no space before added tokens, so there is none to leave out; an unknown id has no text.
    assert run(t, ids, **joined)[0] == t.decode(ids[:-1], **joined) == kinds["bpe_suffix"].decode(ids[:-1], False)


@pytest.mark.parametrize("name", ["smollm2", "byte_level", "byte_fallback", "sentencepiece_model"])
def test_a_run_of_invalid_bytes_that_never_ends_is_delivered(kinds, name):
    kind = kinds[name]
    bad = byte_ids(kind)[0x80]
    stream = Stream(kind.tokenizer)
    for n in range(20000):
        assert stream.append([bad], False)[0] == "\ufffd", n


def test_library_text_delivers_what_never_becomes_valid():
    class Tokenizer:
        calls = 0

        def library_decode(self, ids, skip_special_tokens):
            self.calls += len(ids)
            return "\ufffd" * len(ids)

    t = Tokenizer()
    stream = LibraryTextStream(t, [1, 2], SamplingParams())
    text = "".join(stream.append([i], None)[0] for i in range(6400))
    assert len(text) >= 6400 - 64
    assert len(text) + len(stream.append([], "length")[0]) == 6400
    assert t.calls < 6400 * 200  # a bounded part for each token, not all that came before


def test_a_valid_run_of_bytes_is_shown_while_it_grows(kinds):
    """The rule that a run is text as a whole has a bound (cpp/core/text/byte_run.h), or nothing would be seen of it."""
    kind = kinds["byte_fallback"]
    ids = byte_ids(kind)
    stream = Stream(kind.tokenizer)
    shown = [len("".join(stream.append([ids[b]], False)[0] for b in "日".encode())) for _ in range(100)]
    assert sum(shown) >= 78
    assert sum(shown) + len(stream.append([], True)[0]) == 100
