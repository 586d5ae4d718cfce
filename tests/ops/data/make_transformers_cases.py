"""Writes transformers_cases.inc: what the logits processors of transformers make of random logits.

python tests/ops/data/make_transformers_cases.py   (needs torch and transformers; made with transformers 5.24.0)
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import torch
from transformers.generation import logits_process as lp

VOCAB = 48
EOS = 3


def number(value: float) -> str:
    if value == float("-inf"):
        return "-kInf"
    text = f"{value:.9g}"
    return f"{text}f" if "." in text else f"{text}.0f"


def braces(words: list[str], indent: str) -> str:
    """The words in braces, in lines of at most 120 columns."""
    text = "{" + ", ".join(words) + "}"
    return "\n".join(textwrap.wrap(text, 118, initial_indent=indent, subsequent_indent=indent + " "))


def main() -> None:
    torch.manual_seed(7)
    history = torch.randint(0, VOCAB, (1, 40))
    history[0, -1] = 7
    ids = history[0].tolist()
    biases = {(2,): 1.5, (7,): -3.25, (40,): 0.75}
    no_bias_ids = [2, 7, 40]
    allowed = [1, 7, 8, 30, 47]
    cases = [  # name, parameter, temperature, ids, processors
        ("repetition", 1.3, 1.0, ids, [lp.RepetitionPenaltyLogitsProcessor(1.3)]),
        ("repetition", 0.6, 1.0, ids, [lp.RepetitionPenaltyLogitsProcessor(0.6)]),
        ("bias", 0.0, 1.0, no_bias_ids, [lp.SequenceBiasLogitsProcessor(biases)]),
        ("ban", 0.0, 1.0, [5, 9], [lp.NoBadWordsLogitsProcessor([[5], [7, 9], [8, 11]], eos_token_id=EOS)]),
        ("ban", 0.0, 1.0, [EOS], [lp.MinNewTokensLengthLogitsProcessor(38, 4, EOS)]),
        ("ban", 0.0, 1.0, [1, 2, 46], [lp.SuppressTokensLogitsProcessor([1, 2, 46])]),
        ("allowed", 0.0, 1.0, allowed, [lp.PrefixConstrainedLogitsProcessor(lambda batch, sent: allowed, 1)]),
    ]
    for temperature in (0.6, 1.0, 1.7):
        warm = lp.TemperatureLogitsWarper(temperature)
        cases += [
            ("top_k", 9, temperature, [], [warm, lp.TopKLogitsWarper(9)]),
            ("top_p", 0.8, temperature, [], [warm, lp.TopPLogitsWarper(0.8)]),
            ("min_p", 0.12, temperature, [], [warm, lp.MinPLogitsWarper(0.12)]),
            ("typical_p", 0.7, temperature, [], [warm, lp.TypicalLogitsWarper(0.7)]),
        ]
    what = "name, parameter, temperature, ids, in, out"
    out = [f"// Made by make_transformers_cases.py with transformers 5.24.0: {what}."]
    for name, parameter, temperature, case_ids, processors in cases:
        logits = torch.randn(1, VOCAB) * 2.5
        scores = logits.clone()
        for processor in processors:
            scores = processor(history, scores)
        out.append(f'{{"{name}", {float(parameter)}f, {temperature}f,')
        out.append(braces([str(i) for i in case_ids], " ") + ",")
        out.append(braces([number(v) for v in logits[0].tolist()], " ") + ",")
        out.append(braces([number(v) for v in scores[0].tolist()], " ") + "},")
    Path(__file__).with_name("transformers_cases.inc").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
