"""For each route and each field that it takes: a request, and a value of the field that changes the answer to it."""

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
COUNT, TOKENIZE, DETOKENIZE, ABORT = "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/abort_requests"
ROUTES = (COMPLETIONS, CHAT, RESPONSES, MESSAGES, COUNT, TOKENIZE, DETOKENIZE, ABORT)
TEMPLATE = "{{ messages[0]['content'] }}{{ extra }}{% for d in documents %}{{ d['text'] }}{% endfor %}"
EOS, MARK = 2, 1  # ids of special tokens

USER = [{"role": "user", "content": "abc"}]
TALK = [*USER, {"role": "assistant", "content": "de"}]
START = {
    COMPLETIONS: {"prompt": "abc", "max_tokens": 12},
    CHAT: {"messages": USER, "max_tokens": 12},
    RESPONSES: {"input": "abc", "max_output_tokens": 12},
    MESSAGES: {"messages": USER, "max_tokens": 12},
    COUNT: {"messages": USER},
    TOKENIZE: {"prompt": "abc"},
    DETOKENIZE: {"tokens": [70, 71]},
    ABORT: {"request_ids": ["nobody"]},
}

RANDOM = {"temperature": 1.5, "seed": 1}
GREEDY = {"temperature": 0, "ignore_eos": True}
ENDS = {"temperature": 0, "logit_bias": {str(EOS): 100}}
TWO = {"temperature": 0, "allowed_token_ids": [70, 71], "ignore_eos": True}  # whose output repeats itself
DRY = {**TWO, "dry_multiplier": 5.0}

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
    "presence_penalty": (TWO, 2.0),
    "frequency_penalty": (TWO, 2.0),
    "repetition_penalty": (TWO, 10.0),
    "dry_multiplier": (TWO, 5.0),
    "dry_base": ({**TWO, "dry_multiplier": 1e-6}, 1000.0),
    "dry_allowed_length": (DRY, 50),
    "dry_range": (DRY, 2),
    "dry_sequence_breakers": (DRY, ["c", "d"]),
    "logit_bias": (GREEDY, {"80": 100}),
    "allowed_token_ids": (GREEDY, [80]),
    "bad_words": ({**GREEDY, "logit_bias": {"70": 50}}, ["c"]),
    "seed": (RANDOM, 2),
    "min_tokens": (ENDS, 5),
    "stop": (TWO, ["c", "d"]),
    "stop_token_ids": (TWO, [70, 71]),
    "ignore_eos": (ENDS, True),
    "include_stop_str_in_output": ({**TWO, "stop": ["c", "d"]}, True),
    "skip_special_tokens": ({**GREEDY, "allowed_token_ids": [MARK]}, False),
    "logprob_token_ids": ({**GREEDY, "logprobs": 1}, [5, 6]),
}
PROMPT_64 = [100 + n for n in range(64)]
COMMON = {
    "model": ({}, "other"),
    "stream": (GREEDY, True),
    "stream_options": ({**GREEDY, "stream": True, "max_tokens": 1}, {"include_usage": True}),
    "max_tokens": (GREEDY, 3),
    "request_id": ({}, "contract-1"),
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
        "prompt": ({}, "other"),
        "echo": (GREEDY, True),
        "logprobs": (GREEDY, 1),
        "add_special_tokens": ({}, False),
    },
    CHAT: {
        **SAMPLING,
        **COMMON,
        **TEMPLATE_TABLE,
        "max_completion_tokens": (GREEDY, 3),
        "logprobs": (GREEDY, True),
        "top_logprobs": ({**GREEDY, "logprobs": True}, 2),
        "echo": ({**GREEDY, "messages": TALK, "continue_final_message": True}, True),
        "logprob_token_ids": ({**GREEDY, "logprobs": True}, [5, 6]),
        "return_tokens_as_token_ids": ({**GREEDY, "logprobs": True}, True),
    },
    RESPONSES: {
        **{name: entry for name, entry in SAMPLING.items() if name != "n"},
        **{name: COMMON[name] for name in ("model", "stream", "truncate_prompt_tokens")},
        "truncation_side": COMMON["truncation_side"],
        "input": ({}, "other"),
        "include": (GREEDY, ["message.output_text.logprobs"]),
        "top_logprobs": ({**GREEDY, "include": ["message.output_text.logprobs"]}, 2),
        "logprob_token_ids": ({**GREEDY, "include": ["message.output_text.logprobs"]}, [5, 6]),
        "instructions": ({}, "Be brief."),
        "max_output_tokens": (GREEDY, 3),
        "store": ({}, False),
        "metadata": ({}, {"a": "b"}),
        "tool_choice": ({}, "auto"),
        "parallel_tool_calls": ({}, False),
    },
    MESSAGES: {
        **{name: SAMPLING[name] for name in ("top_p", "top_k", "temperature")},
        **{name: COMMON[name] for name in ("model", "stream", "max_tokens")},
        "messages": TEMPLATE_TABLE["messages"],
        "system": ({}, "Be brief."),
        "stop_sequences": ({}, [chr(n) for n in range(97, 105)]),
    },
    COUNT: {"messages": TEMPLATE_TABLE["messages"], "system": ({}, "Be brief.")},
    TOKENIZE: {
        **TEMPLATE_TABLE,
        "prompt": ({}, "other"),
        "add_special_tokens": ({}, False),
        "return_token_strs": ({}, True),
    },
    DETOKENIZE: {"tokens": ({}, [80])},
    ABORT: {},
}
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
    "background": "test_other_apis.test_background_and_cancel",
    "previous_response_id": "test_other_apis.test_kept_responses",
    "request_ids": "test_disconnect.test_abort_by_id",
    "all": "test_disconnect.test_abort_by_id",
    "model": "test_field_contract.test_models_that_are_not_served",
}
