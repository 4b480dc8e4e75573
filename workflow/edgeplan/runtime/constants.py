"""Values of oneDNN's C enumerations (dnnl_types.h and dnnl_common_types.h of version 3; stable within a major version)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SUCCESS: Final = 0
UNIMPLEMENTED: Final = 3
LAST_IMPL_REACHED: Final = 4
STATUS_NAMES: Mapping[int, str] = MappingProxyType(
    {
        1: "out of memory",
        2: "invalid arguments",
        3: "unimplemented",
        4: "last implementation reached",
        5: "runtime error",
        6: "not required",
    }
)
#: Beside the library's: what a compiled kernel says.
BAD_INDEX: Final = 100
BYTE_VALUES: Final = 256
#: How many numbers a kernel from bytes to bytes is told (`transform.line_constants`).
NUMBERS: Final = 9

CPU: Final = 1
IN_ORDER: Final = 1
F32: Final = 3
U8: Final = 6
#: dnnl_data_type_t of the types that primitives take; others are moved as bytes.
TYPES: Mapping[str, int] = MappingProxyType({"float32": F32, "int32": 4, "int8": 5, "uint8": U8})
SCRATCHPAD_USER: Final = 1
FORWARD_INFERENCE: Final = 96

#: Format tags: plain row-major by rank, and the layouts of 4-D activations.
PLAIN_TAGS: Mapping[int, int] = MappingProxyType({rank: rank + 1 for rank in range(1, 11)})
ANY: Final = 1
NHWC_TAG: Final = 22
BLOCKED_TAGS: Mapping[int, int] = MappingProxyType({8: 102, 16: 78})

CONVOLUTION: Mapping[str, int] = MappingProxyType({"direct": 1, "winograd": 2, "auto": 3})
ELTWISE: Mapping[str, int] = MappingProxyType(
    {
        "relu": 32,
        "tanh": 33,
        "elu": 34,
        "square": 35,
        "abs": 36,
        "sqrt": 37,
        "linear": 38,
        "soft_relu": 39,
        "hardsigmoid": 40,
        "logistic": 41,
        "exp": 42,
        "gelu_tanh": 43,
        "swish": 44,
        "log": 45,
        "clip": 47,
        "pow": 48,
        "gelu_erf": 49,
        "mish": 51,
        "hardswish": 52,
    }
)
POOLING: Mapping[str, int] = MappingProxyType({"max": 511, "avg_include_padding": 767, "avg_exclude_padding": 1023})
BINARY: Mapping[str, int] = MappingProxyType(
    {"add": 131056, "mul": 131057, "max": 131058, "min": 131059, "div": 131060, "sub": 131061}
)
RESAMPLING: Mapping[str, int] = MappingProxyType({"nearest": 196592, "linear": 196593})
LRN_ACROSS_CHANNELS: Final = 2815
SOFTMAX: Mapping[str, int] = MappingProxyType({"accurate": 196608, "log": 196609})
DECONVOLUTION_DIRECT: Final = 10
#: dnnl_normalization_flags_t.
USE_SCALE: Final = 2
USE_SHIFT: Final = 4
RNN_DIRECTION: Mapping[str, int] = MappingProxyType({"forward": 1, "reverse": 2, "bidirectional": 3})

QUERY_IMPL_INFO: Final = 8
QUERY_WEIGHTS_MD: Final = 131
QUERY_SCRATCHPAD_MD: Final = 136

ARG_SRC: Final = 1
ARG_SRC_1: Final = 2
ARG_SRC_2: Final = 3
ARG_DST: Final = 17
ARG_DST_1: Final = 18
ARG_DST_2: Final = 19
ARG_WEIGHTS: Final = 33
ARG_WEIGHTS_1: Final = 34
ARG_WEIGHTS_2: Final = 35
ARG_BIAS: Final = 41
ARG_SCALE: Final = 51
ARG_SHIFT: Final = 52
ARG_SCRATCHPAD: Final = 80
ARG_MULTIPLE_SRC: Final = 1024
#: Or-ed with the argument that scales or zero points are of.
ARG_SCALES: Final = 4096
ARG_ZERO_POINTS: Final = 8192
ARG_POST_OP: Final = 32768  # times (index + 1), or-ed with ARG_SRC_1

#: cpu_runtime of dnnl_version_t.
RUNTIME_NAMES: Mapping[int, str] = MappingProxyType({1: "sequential", 2: "OpenMP", 4: "TBB", 8: "threadpool"})
#: dnnl_cpu_isa_t; its bits accumulate.
ISA_NAMES: Mapping[int, str] = MappingProxyType(
    {
        0x1: "sse41",
        0x3: "avx",
        0x7: "avx2",
        0xF: "avx2_vnni",
        0x1F: "avx2_vnni_2",
        0x27: "avx512_core",
        0x67: "avx512_core_vnni",
        0xE7: "avx512_core_bf16",
        0x1EF: "avx512_core_fp16",
        0xFEF: "avx512_core_amx",
        0x1FEF: "avx512_core_amx_fp16",
    }
)
AVX512_CORE: Final = 0x27
#: Bits of instructions that sum up products of bytes without saturating in between (VNNI), with AVX2 and with AVX-512.
EXACT_BYTES: Final = 0x8 | 0x40
