"""Figures of a load: percentiles, rates, goodput; as a table and as JSON."""

from fastllm_core.bench.load import Seen

_PERCENTILES = (50, 90, 95, 99)


def percentile(values: list[float], share: float) -> float:
    """Linear between the nearest ranks, as numpy's default."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(seen: list[Seen], seconds: float, goals: dict[str, float]) -> dict:
    """goals: milliseconds by ttft, tpot and e2e; a request within all of them counts as good."""
    good = [s for s in seen if s.error is None]
    out = {
        "completed": len(good),
        "failed": len(seen) - len(good),
        "duration_s": seconds,
        "request_throughput": len(good) / seconds,
        "input_tokens": sum(s.prompt_tokens for s in good),
        "output_tokens": sum(s.tokens for s in good),
        "output_throughput": sum(s.tokens for s in good) / seconds,
    }
    if goals:
        out["request_goodput"] = sum(_within(s, goals) for s in good) / seconds
    series = {
        "ttft": [s.ttft for s in good if s.ttft is not None],
        "tpot": [s.tpot for s in good if s.tpot is not None],
        "itl": [gap for s in good for gap in s.itl],
        "e2e": [s.e2e for s in good],
    }
    for name, values in series.items():
        if values:
            out[f"{name}_ms"] = {
                "mean": sum(values) / len(values) * 1e3,
                **{f"p{p}": percentile(values, p) * 1e3 for p in _PERCENTILES},
            }
    errors = sorted({s.error for s in seen if s.error is not None})
    if errors:
        out["errors"] = errors[:10]
    return out


def _within(seen: Seen, goals: dict[str, float]) -> bool:
    return all((value := getattr(seen, name)) is None or value * 1e3 <= limit for name, limit in goals.items())


def parse_goals(words: list[str]) -> dict[str, float]:
    """["ttft:200", "tpot:50"] -> {"ttft": 200.0, "tpot": 50.0}; ValueError says what is wrong."""
    out = {}
    for word in words:
        name, _, value = word.partition(":")
        if name not in ("ttft", "tpot", "e2e"):
            raise ValueError(f"a goal is ttft:MS, tpot:MS or e2e:MS, got {word!r}")
        out[name] = float(value)
    return out


def table(figures: dict) -> str:
    """The figures as lines for a person."""
    lines = []
    for name, value in figures.items():
        if isinstance(value, dict):
            cells = "  ".join(f"{key} {number:.2f}" for key, number in value.items())
            lines.append(f"{name:<20} {cells}")
        elif isinstance(value, float):
            lines.append(f"{name:<20} {value:.2f}")
        elif isinstance(value, list):
            lines += [f"{name:<20} {item}" for item in value]
        else:
            lines.append(f"{name:<20} {value}")
    return "\n".join(lines)
