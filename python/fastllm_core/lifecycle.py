"""Pause, sleep and prefix cache, as LLM and AsyncLLM share them. Names and defaults are vLLM's where it has them."""


def pause(engine, mode: str, clear_cache: bool) -> None:
    engine.pause(mode)
    if clear_cache and mode != "keep":
        engine.reset_prefix_cache()


def sleep(engine, level: int, mode: str) -> None:
    """An engine that cannot sleep serves again before the error is raised."""
    was_paused = engine.stats().paused
    engine.pause(mode)
    try:
        engine.sleep(level)
    except BaseException:
        if not was_paused:
            engine.resume()
        raise


def wake_up(engine, tags: list[str] | None) -> None:
    engine.wake(tags or [])
    if not engine.stats().asleep:
        engine.resume()


def _prefix(prompt, tokenizer):
    from fastllm_core._C import SamplingParams
    from fastllm_core.inputs import make_prompt

    return make_prompt(prompt, SamplingParams(), tokenizer).request


def count_cached_tokens(engine, prompt, tokenizer) -> int:
    request = _prefix(prompt, tokenizer)
    return engine.count_cached_tokens(request.prompt_token_ids, request.extra_keys)


def pin_prefix(engine, prompt, tokenizer, priority: int, ttl: float | None) -> int:
    request = _prefix(prompt, tokenizer)
    ttl_ms = 0 if ttl is None else max(1, round(ttl * 1000)) if ttl > 0 else -1
    return engine.pin_prefix(request.prompt_token_ids, request.extra_keys, priority=priority, ttl_ms=ttl_ms)
