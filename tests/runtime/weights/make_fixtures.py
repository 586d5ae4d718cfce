"""Writes fixtures/<TYPE>.bin: blocks of every weight type and the float32 values that pip's gguf package reads in them.

File: uint32 rows, uint32 columns, uint32 bytes of blocks, the blocks, rows * columns float32. Little-endian.
Run by hand after a change here (pip install gguf numpy); the files are committed.
"""

import pathlib
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

# Byte positions of the half-precision scales in a block; random bytes there would often be NaN.
SCALES = {
    Type.Q8_0: (0,),
    Type.Q4_0: (0,),
    Type.Q4_1: (0, 2),
    Type.Q5_0: (0,),
    Type.Q5_1: (0, 2),
    Type.Q2_K: (80, 82),
    Type.Q3_K: (108,),
    Type.Q4_K: (0, 2),
    Type.Q5_K: (0, 2),
    Type.Q6_K: (208,),
}
QUANTIZED_BY_GGUF = {Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1}


def finite_halves(rng: np.random.Generator, count: int) -> np.ndarray:
    """Halves over all finite bit patterns: both signs, zeros and subnormals among them."""
    bits = rng.integers(0, 0x7C00, count, dtype=np.uint16) | (rng.integers(0, 2, count, dtype=np.uint16) << 15)
    bits[::7] &= 0x83FF
    return bits.view(np.float16)


def random_blocks(rng: np.random.Generator, kind: Type, rows: int, blocks: int) -> np.ndarray:
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = rng.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    for at in SCALES[kind]:
        data[:, at : at + 2] = finite_halves(rng, rows * blocks).view(np.uint8).reshape(-1, 2)
    return data.reshape(rows, blocks * size)


def blocks_of(rng: np.random.Generator, kind: Type) -> np.ndarray:
    if kind == Type.F32:
        return rng.standard_normal((5, 24), dtype=np.float32)
    if kind == Type.F16:
        return finite_halves(rng, 5 * 24).reshape(5, 24)
    if kind == Type.BF16:
        return gguf.quants.quantize(rng.standard_normal((5, 24), dtype=np.float32), kind)
    rows = random_blocks(rng, kind, 5, 2 if gguf.GGML_QUANT_SIZES[kind][0] == 256 else 6)
    if kind in QUANTIZED_BY_GGUF:
        real = rng.standard_normal((3, 192), dtype=np.float32)
        rows = np.concatenate([rows, gguf.quants.quantize(real, kind)])
    return rows


def main() -> None:
    folder = pathlib.Path(__file__).parent / "fixtures"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(20240607)
    for kind in (Type.F32, Type.F16, Type.BF16, *SCALES):
        data = np.ascontiguousarray(blocks_of(rng, kind))
        values = np.ascontiguousarray(gguf.quants.dequantize(data, kind), dtype="<f4")
        head = struct.pack("<III", *values.shape, data.nbytes)
        (folder / f"{kind.name}.bin").write_bytes(head + data.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
