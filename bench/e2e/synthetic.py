"""Writes a random Llama of the size of Gemma 3 270M as Q4_K_M would store it, for speed alone.

18 layers, 4 heads of 256 over one KV head, a vocabulary of 262,144 in Q8_0; the body Q4_K, with Q6_K for the value and
down projections of every other layer. The hidden size is 768 in place of Gemma's 640, which is no multiple of the 256
values of a K block (files of the real model hold Q5_0 there).
"""

from __future__ import annotations

from pathlib import Path

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, CONTEXT = 18, 768, 2048, 4, 1, 256, 262144, 2048


def blocks(rng, kind, rows: int, columns: int):
    """Random blocks whose values have mean 0 and deviation near 0.02."""
    import gguf
    import numpy as np

    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = rows * columns // elements
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)

    def put(at: int, value: float) -> None:
        data[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)

    if kind == gguf.GGMLQuantizationType.Q4_K:  # d sc q - dmin m: sc and m 6 bits, q 4 bits
        put(0, 1e-4)
        put(2, 7.5e-4)
    elif kind == gguf.GGMLQuantizationType.Q6_K:  # d sc (q - 32): sc 8 bits
        put(208, 1.5e-5)
    else:  # Q8_0
        put(0, 2.7e-4)
    return data.reshape(rows, -1)


def make(target: Path) -> Path:
    """Fills `target` once; later calls find it complete."""
    if target.is_file():
        return target
    import gguf
    import numpy as np

    q4, q6, q8 = (gguf.GGMLQuantizationType[name] for name in ("Q4_K", "Q6_K", "Q8_0"))
    rng = np.random.default_rng(1)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)

    def matrix(name: str, kind, rows: int, columns: int) -> None:
        writer.add_tensor(name + ".weight", blocks(rng, kind, rows, columns), raw_dtype=kind)

    matrix("token_embd", q8, VOCAB, HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, dtype=np.float32))
    for layer in range(LAYERS):
        more = q6 if layer % 2 == 0 else q4
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(HIDDEN, dtype=np.float32))
        matrix(f"blk.{layer}.attn_q", q4, HEADS * HEAD_DIM, HIDDEN)
        matrix(f"blk.{layer}.attn_k", q4, KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(f"blk.{layer}.attn_v", more, KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(f"blk.{layer}.attn_output", q4, HIDDEN, HEADS * HEAD_DIM)
        matrix(f"blk.{layer}.ffn_gate", q4, FFN, HIDDEN)
        matrix(f"blk.{layer}.ffn_up", q4, FFN, HIDDEN)
        matrix(f"blk.{layer}.ffn_down", more, HIDDEN, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)
    return target
