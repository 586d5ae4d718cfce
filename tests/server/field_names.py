"""Names that requests of this server's peers may hold on any route, beside those that have a meaning here."""

PEERS_FIELDS = """
    audio background bad_words_ids bad_words_token_ids best_of bootstrap_host bootstrap_port bootstrap_room
    cache_options cache_prompt chat_template_args container context_management conversation custom_logit_processor
    custom_params data_parallel_rank detokenize disable_any_whitespace disaggregated_params do_sample
    dynatemp_exponent dynatemp_range early_stopping ebnf enable_response_messages enable_thinking extra_args
    extra_configs extra_key extra_query fim format frequency_penalty_range function_call functions grammar
    grammar_lazy grammar_triggers guided_choice guided_decoding_backend guided_grammar guided_json
    guided_options_request guided_regex guided_whitespace_pattern id_slot image_data include include_reasoning
    inputs instructions_id json_object json_schema keep_alive kv_transfer_params length_penalty
    logits_processor_pattern logits_processors lookahead_config lora_name lora_path lora_request max_input_tokens
    max_new_tokens max_tool_calls mcp_servers media_io_kwargs min_keep min_length mirostat mirostat_eta mirostat_tau
    mm_payload mm_processor_kwargs mm_uuids modalities n_discard n_indent n_keep n_predict n_probs negative_prompt
    no_repeat_ngram_size no_stop_trim num_beams num_ctx num_predict options output_config output_format output_kind
    post_sampling_probs prediction presence_penalty_range previous_input_messages prompt_cache_options
    prompt_cache_retention prompt_embeds prompt_ignore_length prompt_logprob_token_ids random_seed reasoning
    reasoning_budget reasoning_effort reasoning_format regex repeat_last_n repeat_penalty repetition_detection
    reset_cache response_fields response_format return_full_text return_hidden_states return_logprob
    return_mm_kwargs return_progress return_prompt_text return_routed_experts return_sequences return_token_offsets
    return_tokens return_weight_versions rid routed_experts_prompt_start samplers sampling_params sampling_seed
    separate_reasoning service_tier session_id session_params skip_clone slo_ms stop_regex store stream_reasoning
    structural_tag structured_outputs t_max_predict_ms task text text_config tfs_z thinking thinking_budget_tokens
    thinking_token_budget timings_per_token token_healing token_ids_logprob tool_call_id tool_choice tools top_a
    top_logprobs_num tpot_slo_ms traffic_class truncate truncation ttft_slo_ms typical_p_range use_beam_search
    verbosity watermark watermarking web_search_options whitespace_pattern
""".split()
