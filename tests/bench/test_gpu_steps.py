"""The table of GPU steps: what is counted as what, on made-up kernels."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from e2e.gpu_steps import Event, grouped, kind_of, name_of, report, steps_of

MS = 1_000_000


def events(*kernels: tuple[str, float, float]) -> list[Event]:
    return [Event(round(begin * MS), round(end * MS), name) for name, begin, end in kernels]


DECODE = (("void FeedTokensKernel(x)", 0, 0.1), ("DecodeKernel<bf16>", 0.1, 2.0), ("nvjet_sm90_256x128", 2.5, 4.0))
MIXED = (
    ("FeedTokensKernel", 6.0, 6.1),
    ("HopperPrefillKernel<bf16>", 6.1, 8.0),
    ("DecodeKernel<bf16>", 8.0, 10.0),
    ("nvjet_sm90_128x256", 9.5, 16.0),
)


def test_kinds():
    assert kind_of("void fastllm::cuda::RmsNormKernel<...>") == "norm"
    assert kind_of("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT") == "product"
    assert kind_of("cublasLt::splitKreduce_kernel") == "product, sums"
    assert (
        kind_of("something else that is long enough to be cut off here") == "something else that is long enough to be"
    )


def test_a_step_begins_with_its_feed():
    warm_up = ("nvjet_sm90_first", -3, -2)
    steps = steps_of(events(*MIXED, warm_up, *DECODE))
    assert [len(s) for s in steps] == [3, 4]
    assert [name_of(s) for s in steps] == ["decode 0 to 5", "mixed 8 to 12"]


def test_groups_add_up():
    groups = grouped(steps_of(events(*DECODE, *MIXED)))
    decode, mixed = groups["decode 0 to 5"], groups["mixed 8 to 12"]
    assert (decode.steps, decode.span, decode.idle, decode.before) == (1, 4.0, 0.5, 0.0)
    # Kernels that overlap leave nothing idle and count in full.
    assert (mixed.span, mixed.idle, mixed.before) == (10.0, 0.0, 2.0)
    assert round(sum(mixed.kernels.values()), 6) == 10.5


def test_the_report_names_every_kind_and_the_products():
    lines = report(events(*DECODE, *MIXED))
    assert lines[0].startswith("decode 0 to 5 ms: 1 steps, 4 ms, each 4.00, idle 0.500")
    assert "product 8" in lines[2] and "idle 0" in lines[2] and "between 2" in lines[2]
    assert lines[3] == "nvjet_sm90_128x256: 1 x 6500.0 us = 6 ms"
