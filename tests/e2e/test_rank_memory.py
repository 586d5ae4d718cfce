"""What a rank's process has resident while it loads: its share of the weights and little more."""

import json
import os
import pathlib

from rank_support import peak_bytes, ranks_of

from fastllm_core import LLM

TENSOR = 2
VOCAB = 2048


def write_model(folder: pathlib.Path, hidden: int, layers: int) -> int:
    """A Llama in bfloat16 whose file is one hole, which reads as zeros; gives the bytes of a tensor rank's share."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [VOCAB, hidden], "lm_head.weight": [VOCAB, hidden]}
    norms = {"model.norm.weight": [hidden]}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}self_attn.{name}_proj.weight": [hidden, hidden] for name in "qkvo"}
        shapes |= {f"{at}mlp.{name}_proj.weight": [4 * hidden, hidden] for name in ("gate", "up")}
        shapes[f"{at}mlp.down_proj.weight"] = [hidden, 4 * hidden]
        norms |= {f"{at}{name}_layernorm.weight": [hidden] for name in ("input", "post_attention")}
    head, end = {}, 0
    for name, shape in (shapes | norms).items():
        begin, end = end, end + 2 * (shape[0] * shape[1] if len(shape) == 2 else shape[0])
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return 2 * (sum(a * b for a, b in shapes.values()) // TENSOR + sum(n for (n,) in norms.values()))


def peaks(folder: pathlib.Path) -> list[int]:
    options = {"tensor_parallel_size": TENSOR, "distributed_executor_backend": "processes", "cpu_threads": TENSOR}
    small = {"max_model_len": 32, "max_num_batched_tokens": 32, "num_gpu_blocks_override": 4, "max_num_seqs": 2}
    with LLM(model=str(folder), skip_tokenizer_init=True, **options, **small):
        return [peak_bytes(pid) for pid in ranks_of(os.getpid()).values()]


def test_a_rank_peaks_at_its_share_while_it_loads(tmp_path):
    share = write_model(tmp_path, 1024, 16)
    found = peaks(tmp_path)
    print(f"share {share >> 20} MiB, peaks {[n >> 20 for n in found]}")
    assert len(found) == TENSOR
    assert all(share < n <= 1.15 * share for n in found)  # the process and all
