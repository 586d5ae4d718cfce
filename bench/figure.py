"""One measured figure and how it is printed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """`reference` is the same quantity of the thing compared with; higher_is_better tells which way ratio goes."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    higher_is_better: bool = True

    def line(self) -> str:
        ratio = None
        if self.reference:
            ratio = self.value / self.reference if self.higher_is_better else self.reference / self.value
        fields = {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "reference": None if self.reference is None else round(self.reference, 4),
            "ratio": None if ratio is None else round(ratio, 3),
        }
        return "RESULT " + json.dumps(fields)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
