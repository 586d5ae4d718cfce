"""Scheduler, block pool, prefix index, codec and text through the binding."""

import pytest

from fastllm_core import _C, CorruptFileError, InvalidArgumentError, SamplingParams

T = _C._core_testing
BLOCK = 4


def make_scheduler(num_blocks: int = 9, budget: int = 16):
    sched = T.SchedConfig(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=budget)
    return T.Scheduler(sched, T.KvConfig(num_blocks=num_blocks, block_size=BLOCK))


def run_step(scheduler, token: int):
    """Plans one step and answers every sampled row with `token`."""
    plan = scheduler.schedule()
    result = T.StepResult()
    result.step_id = plan.step_id
    result.rows = [T.SampledRow(r.id, [token]) for r in plan.rows if r.sample]
    return plan, scheduler.update(plan, result)


def test_one_request_from_start_to_end():
    s = make_scheduler()
    s.add(1, [5, 6, 7, 8, 9, 10], max_tokens=2)
    plan, updates = run_step(s, 50)
    assert [(r.id, r.num_tokens, r.sample) for r in plan.rows] == [(1, 6, True)]
    assert plan.added[0].tokens == [5, 6, 7, 8, 9, 10]
    assert len(plan.added[0].block_ids[0]) == 2
    assert [(u.id, u.new_tokens, u.finish_reason) for u in updates] == [(1, [50], "")]
    plan, updates = run_step(s, 51)
    assert [(r.id, r.num_tokens) for r in plan.rows] == [(1, 1)]
    assert [(u.new_tokens, u.finish_reason) for u in updates] == [([51], "length")]
    assert not s.has_work()
    assert s.stats().used_blocks == 0


def test_long_prompt_is_split_at_the_budget():
    s = make_scheduler(num_blocks=20, budget=16)
    s.add(1, list(range(40)), max_tokens=1)
    chunks = [run_step(s, 3)[0].rows[0] for _ in range(3)]
    assert [(c.num_tokens, c.sample) for c in chunks] == [(16, False), (16, False), (8, True)]


def test_prefix_hit_at_admission():
    s = make_scheduler()
    s.add(1, list(range(10)), max_tokens=1)
    run_step(s, 3)
    s.add(2, list(range(10)), max_tokens=1)
    plan, updates = run_step(s, 3)
    assert plan.added[0].num_computed_tokens == 8  # two full blocks of four
    assert updates[0].num_cached_tokens == 8
    assert s.stats().prefix_hit_tokens == 8


def test_cache_salt_parts_prefixes():
    s = make_scheduler()
    s.add(1, list(range(10)), max_tokens=1, cache_salt="a")
    run_step(s, 3)
    s.add(2, list(range(10)), max_tokens=1, cache_salt="b")
    assert run_step(s, 3)[0].added[0].num_computed_tokens == 0


def test_eos_and_stop_token():
    s = make_scheduler()
    s.add(1, [1, 2], max_tokens=9, eos_token_ids=[7])
    s.add(2, [1, 2, 3], max_tokens=9, sampling=SamplingParams(stop_token_ids=[7]))
    _, updates = run_step(s, 7)
    assert {(u.id, u.finish_reason, u.stop_reason) for u in updates} == {(1, "stop", None), (2, "stop", 7)}


def test_finish_from_outside_frees_the_blocks():
    s = make_scheduler()
    s.add(1, [1, 2, 3], max_tokens=9)
    run_step(s, 5)
    assert s.stats().used_blocks == 1
    assert s.finish(1)
    assert not s.finish(1)
    assert s.stats().used_blocks == 0


def test_block_pool_eviction_order():
    pool = T.BlockPool(5)
    assert pool.allocate(4) == [1, 2, 3, 4]
    assert pool.allocate(1) is None
    pool.free([1, 2, 3])
    assert (pool.num_free_blocks, pool.num_used_blocks) == (3, 1)
    assert pool.ref_count(4) == 1
    assert sorted(pool.free_blocks()) == [1, 2, 3]
    with pytest.raises(InvalidArgumentError, match="block 5"):
        pool.free([5])


def test_prefix_index_finds_by_content():
    index = T.PrefixIndex(num_blocks=8, block_size=2)
    first = T.hash_block(T.CHAIN_SEED, [1, 2])
    node = index.insert(T.ROOT_NODE, first, [1, 2], blocks=[3])
    assert index.find(T.ROOT_NODE, first, [1, 2]) == node
    assert index.any_block(node) == 3
    assert index.find(T.ROOT_NODE, first, [1, 3]) == T.NO_NODE  # the same hash, other tokens
    assert index.find(node, first, [1, 2]) == T.NO_NODE  # the same content under another parent
    assert T.hash_block(first, [1, 2]) != first
    assert index.erase(3)
    assert index.num_cached_blocks == 0


def test_freed_blocks_stay_in_the_index_until_they_are_taken():
    index = T.PrefixIndex(num_blocks=3, block_size=2)
    pool = T.BlockPool(3, index)
    (block,) = pool.allocate(1)
    hashed = T.hash_block(T.CHAIN_SEED, [1, 2])
    index.insert(T.ROOT_NODE, hashed, [1, 2], blocks=[block])
    pool.free([block])
    assert index.contains(block)
    assert pool.allocate(2)[-1] == block  # cached blocks are taken last
    assert not index.contains(block)


def example_plan():
    new = T.NewSequence()
    new.id, new.tokens, new.num_prompt_tokens, new.num_computed_tokens = 2**63, [1, 2, 3], 3, 0
    spec = T.SamplingSpec()
    spec.temperature, spec.top_k, spec.seed, spec.banned_until_min = 0.5, 7, 2**64 - 1, [2]
    new.sampling, new.block_ids = spec, [[1, 2], []]
    row = T.ScheduledRow()
    row.id, row.num_tokens, row.sample = 2**63, 3, True
    plan = T.StepPlan()
    plan.step_id, plan.removed, plan.added, plan.rows, plan.total_tokens = 9, [4, 5], [new], [row], 3
    return plan


def test_codec_round_trip():
    data = T.encode_step_plan(example_plan())
    plan = T.decode_step_plan(data)
    assert T.encode_step_plan(plan) == data
    assert (plan.step_id, plan.removed, plan.total_tokens) == (9, [4, 5], 3)
    new = plan.added[0]
    assert (new.id, new.tokens, new.block_ids) == (2**63, [1, 2, 3], [[1, 2], []])
    assert (new.sampling.temperature, new.sampling.seed, new.sampling.banned_until_min) == (0.5, 2**64 - 1, [2])
    result = T.StepResult()
    result.step_id, result.rows, result.error = 3, [T.SampledRow(1, [7])], "broken"
    again = T.decode_step_result(T.encode_step_result(result))
    assert (again.step_id, again.rows[0].tokens, again.error) == (3, [7], "broken")


def test_codec_refuses_damage_anywhere():
    data = T.encode_step_plan(example_plan())
    for cut in range(len(data)):
        with pytest.raises(CorruptFileError):
            T.decode_step_plan(data[:cut])
    for at in range(len(data)):
        with pytest.raises(CorruptFileError):
            T.decode_step_plan(data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :])
    with pytest.raises(CorruptFileError):
        T.decode_step_result(data)


def byte_table():
    return _C.TokenTable([bytes([i]) for i in range(256)] + [b"<end>"], [False] * 256 + [True])


def test_detokenizer_holds_half_characters():
    d = T.Detokenizer(byte_table())
    assert [d.append(b) for b in "é😀".encode()] == ["", "é", "", "", "", "😀"]
    assert d.append(256) == ""  # special
    assert d.append(0xE2) == ""
    assert d.flush() == "\ufffd"


def test_stop_matcher_takes_the_first_to_complete():
    assert T.StopMatcher(["world", "lo"]).feed("hello world") == (1, 5)
    m = T.StopMatcher(["abc"])
    assert m.feed("xab") is None
    assert m.feed("cd") == (0, 1)


def test_text_stream_holds_back_and_cuts():
    stream = T.TextStream(byte_table(), [1], SamplingParams(stop=["STOP"]))
    first = stream.append(list(b"abcST"))
    assert (first.text, first.text_offsets) == ("abc", [0, 1, 2, 3, 4])  # "ST" may begin the stop string
    second = stream.append(list(b"OPxyz"))
    assert (second.text, second.stop_string, second.num_tokens) == ("", "STOP", 2)


def test_token_table_checks():
    table = byte_table()
    assert (len(table), table.bytes_of(0x41), table.is_special(256)) == (257, b"A", True)
    with pytest.raises(InvalidArgumentError):
        T.Detokenizer(_C.TokenTable([b"a"], []))
