"""Pause and sleep, as LLM and AsyncLLM share them. Names and defaults are vLLM's."""


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
