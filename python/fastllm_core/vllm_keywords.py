"""Keywords of vLLM that are no options of this version.

A script that states with such a keyword what is the case here anyway runs unchanged: the tables below list those
statements. Any other value, and any keyword that is not listed, is an error that names it. Nothing is accepted and
then ignored.
"""

from fastllm_core.errors import InvalidArgumentError, UnknownOptionError

_UNSET = (None,)

# LLM(...) keyword -> the values that are true of this version, and what is the case.
ENGINE_STATEMENTS: dict[str, tuple[tuple, str]] = {
    "disable_log_stats": ((True,), "statistics are not logged"),
    "trust_remote_code": ((False,), "code from model folders never runs"),
    "tensor_parallel_size": ((1,), "one rank"),
    "pipeline_parallel_size": ((1,), "one rank"),
    "enable_expert_parallel": ((False,), "one rank"),
    "enable_lora": ((False,), "adapters are not loaded"),
    "speculative_config": (_UNSET, "no speculation"),
    "scheduler_reserve_full_isl": ((True,), "a request is admitted when its whole prompt fits"),
    "prefill_schedule_interval": ((1,), "prompts are looked at in every step"),
    "stream_interval": ((1,), "news comes with every step"),
    "max_num_active_seqs": (_UNSET, "max_num_seqs is the limit"),
    "prefix_match_unit": (_UNSET, "blocks are matched"),
    "swap_space": ((0,), "blocks are recomputed, not swapped"),
    "cpu_offload_gb": ((0,), "weights stay where they are loaded"),
    "tokenizer_mode": (("auto",), "the tokenizer's own file decides"),
    "task": (("auto", "generate"), "models generate text"),
    "runner": (("auto", "generate"), "models generate text"),
    "revision": (_UNSET, "models are local files"),
    "tokenizer_revision": (_UNSET, "models are local files"),
    "download_dir": (_UNSET, "nothing is downloaded"),
    "hf_overrides": (_UNSET, "config.json is used as it is"),
}

# SamplingParams(...) keyword -> the same.
SAMPLING_STATEMENTS: dict[str, tuple[tuple, str]] = {
    "best_of": ((None, 1), "all outputs are returned"),
    "structured_outputs": (_UNSET, "output is not constrained"),
    "logits_processors": (_UNSET, "logits processors belong to the engine: LLM(logits_processors=[...])"),
}


def _equal(value, stated) -> bool:
    if isinstance(value, bool) or isinstance(stated, bool):
        return value is stated
    return value == stated


def _check(table: dict, what: str, name: str, value) -> bool:
    if name not in table:
        return False
    values, fact = table[name]
    if any(_equal(value, v) for v in values):
        return True
    stated = " or ".join(repr(v) for v in values)
    raise InvalidArgumentError(f"{what} {name}={value!r} is not supported: {fact}, so it can only be {stated}")


def check_engine_keyword(name: str, value) -> bool:
    """True when the keyword states what is the case; raises when it states something else; False when unknown."""
    return _check(ENGINE_STATEMENTS, "option", name, value)


def check_sampling_keyword(name: str, value) -> bool:
    """As check_engine_keyword(), for SamplingParams."""
    return _check(SAMPLING_STATEMENTS, "sampling parameter", name, value)


def engine_config(options: dict):
    """EngineConfig from LLM's keywords."""
    from fastllm_core._C import EngineConfig, unknown_option_message

    own = {f.name for f in EngineConfig.fields()}
    config = EngineConfig()
    for name, value in options.items():
        if name in own:
            setattr(config, name, value)
        elif not check_engine_keyword(name, value):
            known = sorted(own | {"tokenizer", "skip_tokenizer_init"})
            raise UnknownOptionError(unknown_option_message(name, known))
    return config
