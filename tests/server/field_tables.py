"""For each route and each field that it takes: a request, and a value of the field that changes the answer to it."""

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
COUNT, TOKENIZE, DETOKENIZE, ABORT = "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/abort_requests"
ROUTES = (COMPLETIONS, CHAT, RESPONSES, MESSAGES, COUNT, TOKENIZE, DETOKENIZE, ABORT)
TEMPLATE = "{{ messages[0]['content'] }}{{ extra }}{% for d in documents or [] %}{{ d['text'] }}{% endfor %}"
EOS, MARK = 2, 1  # ids of special tokens

USER = [{"role": "user", "content": "abc"}]
TALK = [*USER, {"role": "assistant", "content": "de"}]
TEXT = {"messages": None, "prompt": "abc"}
START = {
    COMPLETIONS: {"prompt": "abc", "max_tokens": 12},
    CHAT: {"messages": USER, "max_tokens": 12},
    RESPONSES: {"input": "abc", "max_output_tokens": 12},
    MESSAGES: {"messages": USER, "max_tokens": 12},
    COUNT: {"messages": USER},
    TOKENIZE: {"messages": USER},
    DETOKENIZE: {"tokens": [70, 71]},
    ABORT: {"request_ids": ["nobody"]},
}

RANDOM = {"temperature": 1.5, "seed": 1}
GREEDY = {"temperature": 0, "ignore_eos": True}
ENDS = {"temperature": 0, "logit_bias": {str(EOS): 100}}
FEW = {"temperature": 0, "allowed_token_ids": list(range(60, 100)), "ignore_eos": True}  # repeats itself
TWO = {**FEW, "allowed_token_ids": [70, 71]}
DRY = {**TWO, "dry_multiplier": 50.0}

# Fields of SamplingParams: what goes before, and the value that changes the answer.
SAMPLING = {
    "n": (RANDOM, 2),
    "temperature": (GREEDY, 2.0),
    "top_p": (RANDOM, 0.01),
    "top_k": (RANDOM, 1),
    "min_p": (RANDOM, 1.0),
    "typical_p": (RANDOM, 0.01),
    "top_n_sigma": (RANDOM, 0.5),
    "xtc_probability": ({**RANDOM, "xtc_threshold": 0.001}, 1.0),
    "xtc_threshold": ({**RANDOM, "xtc_probability": 1.0}, 0.001),
    "presence_penalty": (FEW, 2.0),
    "frequency_penalty": (FEW, 2.0),
    "repetition_penalty": (FEW, 10.0),
    "dry_multiplier": (TWO, 50.0),
    "dry_base": ({**TWO, "dry_multiplier": 1e-6}, 1000.0),
    "dry_allowed_length": (DRY, 50),
    "dry_range": (DRY, 2),
    "dry_sequence_breakers": (DRY, ["d", "e"]),
    "logit_bias": (GREEDY, {"80": 100}),
    "allowed_token_ids": (GREEDY, [80]),
    "bad_words": ({**GREEDY, "logit_bias": {"70": 50}}, ["d"]),
    "seed": (RANDOM, 2),
    "min_tokens": (ENDS, 5),
    "stop": (FEW, ["c", "d"]),
    "stop_token_ids": (FEW, list(range(60, 100))),
    "ignore_eos": (ENDS, True),
    "include_stop_str_in_output": ({**FEW, "stop": ["c", "d"]}, True),
    "skip_special_tokens": ({**GREEDY, "allowed_token_ids": [MARK]}, False),
    "logprob_token_ids": ({**GREEDY, "logprobs": 1}, [5, 6]),
}
COMMON = {
    "stream": (GREEDY, True),
    "stream_options": ({**GREEDY, "stream": True, "max_tokens": 1}, {"include_usage": True}),
    "max_tokens": (GREEDY, 3),
    "truncate_prompt_tokens": (GREEDY, 2),
    "truncation_side": ({**GREEDY, "truncate_prompt_tokens": 2}, "right"),
    "prompt_logprobs": (GREEDY, 1),
    "return_tokens_as_token_ids": ({**GREEDY, "logprobs": 1}, True),
    "return_token_ids": (GREEDY, True),
}
TEMPLATE_TABLE = {
    "messages": ({}, [{"role": "user", "content": "other"}]),
    "add_generation_prompt": ({}, False),
    "continue_final_message": ({"messages": TALK}, True),
    "add_special_tokens": ({}, True),
    "chat_template": ({}, "{{ messages[0]['content'] }}"),
    "chat_template_kwargs": ({"chat_template": TEMPLATE}, {"extra": "more"}),
    "documents": ({"chat_template": TEMPLATE}, [{"text": "a document"}]),
}
TABLES = {
    COMPLETIONS: {
        **SAMPLING,
        **COMMON,
        "prompt": (GREEDY, "other"),
        "echo": (GREEDY, True),
        "logprobs": (GREEDY, 1),
        "add_special_tokens": (GREEDY, False),
    },
    CHAT: {
        **SAMPLING,
        **COMMON,
        **{name: ({**GREEDY, **before}, value) for name, (before, value) in TEMPLATE_TABLE.items()},
        "max_completion_tokens": (GREEDY, 3),
        "logprobs": (GREEDY, True),
        "top_logprobs": ({**GREEDY, "logprobs": True}, 2),
        "echo": ({**GREEDY, "messages": TALK, "continue_final_message": True}, True),
        "logprob_token_ids": ({**GREEDY, "logprobs": True}, [5, 6]),
        "return_tokens_as_token_ids": ({**GREEDY, "logprobs": True}, True),
    },
    RESPONSES: {
        **{name: entry for name, entry in SAMPLING.items() if name != "n"},
        **{name: COMMON[name] for name in ("stream", "truncate_prompt_tokens")},
        "truncation_side": COMMON["truncation_side"],
        "input": (GREEDY, "other"),
        "include": (GREEDY, ["message.output_text.logprobs"]),
        "top_logprobs": ({**GREEDY, "include": ["message.output_text.logprobs"]}, 2),
        "logprob_token_ids": ({**GREEDY, "include": ["message.output_text.logprobs"]}, [5, 6]),
        "instructions": (GREEDY, "Be brief."),
        "max_output_tokens": (GREEDY, 3),
        "store": (GREEDY, False),
        "metadata": (GREEDY, {"a": "b"}),
        "tool_choice": (GREEDY, "auto"),
        "parallel_tool_calls": (GREEDY, False),
    },
    MESSAGES: {
        "temperature": ({"temperature": 0}, 1.5),
        "stream": ({"temperature": 0}, True),
        "max_tokens": ({"temperature": 0}, 3),
        "messages": ({"temperature": 0}, [{"role": "user", "content": "other"}]),
        "system": ({"temperature": 0}, "Be brief."),
        "stop_sequences": ({"temperature": 0}, [chr(n) for n in range(97, 105)]),
    },
    COUNT: {"messages": TEMPLATE_TABLE["messages"], "system": ({}, "Be brief.")},
    TOKENIZE: {
        **TEMPLATE_TABLE,
        "prompt": (TEXT, "other"),
        "add_special_tokens": (TEXT, False),
        "return_token_strs": ({}, True),
    },
    DETOKENIZE: {"tokens": ({}, [80])},
    ABORT: {},
}
# Of Messages, which has no seed.
ELSEWHERE_OF = {MESSAGES: dict.fromkeys(("top_p", "top_k"), "test_field_contract.test_sampling_of_messages")}
# What another test shows, or one below.
ELSEWHERE = {
    "stream_interval": "test_requests.test_stream_interval",
    "skip_reading_prefix_cache": "test_field_contract.test_fields_of_the_prefix_cache",
    "cache_salt": "test_field_contract.test_fields_of_the_prefix_cache",
    "user": "test_field_contract.test_who_asks_is_in_the_log",
    "safety_identifier": "test_field_contract.test_who_asks_is_in_the_log",
    "prompt_cache_key": "test_field_contract.test_who_asks_is_in_the_log",
    "metadata": "test_field_contract.test_who_asks_is_in_the_log",
    "vllm_xargs": "test_field_contract.test_arguments_of_logits_processors",
    "priority": "test_endless.test_priority",
    "timeout_ms": "test_endless.test_times_of_a_request",
    "max_queue_time_ms": "test_endless.test_times_of_a_request",
    "suffix": "test_field_contract.test_suffix_is_refused",
    "spaces_between_special_tokens": "test_text_properties.test_spaces_between_special_tokens",
    "background": "test_kept_responses.test_background_and_cancel",
    "previous_response_id": "test_kept_responses.test_kept_responses",
    "request_ids": "test_disconnect.test_abort_by_id",
    "all": "test_disconnect.test_abort_by_id",
    "model": "test_field_contract.test_names_of_models",
    "request_id": "test_field_contract.test_request_id",
}
