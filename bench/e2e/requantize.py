"""Writes a copy of a GGUF file with its quantised matrices in another format, by way of float32."""

from __future__ import annotations

from pathlib import Path

# The format of the body -> that of the embedding and head, as llama.cpp's own quantiser chooses.
HEADS = {"Q4_0": "Q8_0", "Q8_0": "Q8_0", "Q4_1": "Q8_0", "BF16": "BF16"}


def _copy_metadata(reader, writer) -> None:
    import gguf

    skip = {"general.architecture", "general.file_type", "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
    for name, field in reader.fields.items():
        if name in skip:
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub_type)


def make(source: Path, target: Path, body: str) -> Path:
    """Fills `target` once; later calls find it complete."""
    if target.is_file():
        return target
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
    _copy_metadata(reader, writer)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{body}"])
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if len(tensor.shape) < 2:
            writer.add_tensor(tensor.name, values)
            continue
        name = HEADS[body] if tensor.name in ("token_embd.weight", "output.weight") else body
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)
    return target
