"""Sampling defaults that a GGUF file carries (general.sampling.*)."""

import gguf
import make_tiny_llama as maker

from fastllm_core import LLM, SamplingParams


class WithDefaults(gguf.GGUFWriter):
    def write_header_to_file(self, *args, **kwargs):
        self.add_float32("general.sampling.temp", 0.0)
        self.add_int32("general.sampling.top_k", 7)
        self.add_float32("general.sampling.penalty_repeat", 1.5)
        super().write_header_to_file(*args, **kwargs)


def test_defaults_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(maker.gguf, "GGUFWriter", WithDefaults)
    path = tmp_path / "model.gguf"
    maker.write_gguf(maker.build("plain"), path, "F32", "llama")
    options = {"skip_tokenizer_init": True, "num_gpu_blocks_override": 40, "cpu_threads": 1}
    with LLM(str(path), **options) as llm:
        stated = {"temperature": 0.0, "top_k": 7, "repetition_penalty": 1.5}
        assert llm.get_diff_sampling_param() == stated
        assert llm.get_default_sampling_params() == SamplingParams(**stated)
        first = llm.generate([[3, 4, 5]], use_tqdm=False)
        assert first[0].outputs[0].token_ids == llm.generate([[3, 4, 5]], use_tqdm=False)[0].outputs[0].token_ids
    with LLM(str(path), generation_config="vllm", **options) as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
