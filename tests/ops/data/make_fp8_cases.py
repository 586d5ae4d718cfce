"""Writes fp8_cases.inc: float32 values with the e4m3 code that torch rounds each to.

    python make_fp8_cases.py > fp8_cases.inc

Every value that is exact, the middle between neighbours and the floats beside it, in both signs, up to 448.
"""

import numpy as np
import torch

codes = np.arange(127, dtype=np.uint8)
values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
middles = (values[1:] + values[:-1]) / 2
inputs = np.concatenate([values, middles, np.nextafter(middles, 0), np.nextafter(middles, 1000)]).astype(np.float32)
inputs = np.unique(np.concatenate([inputs, -inputs]).view(np.uint32))
rounded = torch.from_numpy(inputs.view(np.float32)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
print(f"// Made by make_fp8_cases.py with torch {torch.__version__.split('+')[0]}: bits of a float32, e4m3 code.")
for bits, code in zip(inputs, rounded, strict=True):
    print(f"{{0x{bits:08x}u, 0x{code:02x}}},")
