"""Argument and result types of the C functions used: an undeclared one would cut 64-bit handles to 32 bits."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

_P = ctypes.c_void_p
_OUT = ctypes.POINTER(ctypes.c_void_p)
_INT = ctypes.c_int
_FLOAT = ctypes.c_float
_SIZE = ctypes.c_size_t
DIMS_LENGTH = 12
Dims = ctypes.c_int64 * DIMS_LENGTH
DIMS_BYTES = ctypes.sizeof(Dims)


class ExecArg(ctypes.Structure):
    """`dnnl_exec_arg_t`: which argument, which memory."""

    _fields_: ClassVar = [("arg", ctypes.c_int), ("memory", ctypes.c_void_p)]


_ARGS = ctypes.POINTER(ExecArg)
_HANDLES = ctypes.POINTER(ctypes.c_void_p)

#: Functions that return a status.
STATUS: dict[str, list[Any]] = {
    "dnnl_engine_create": [_OUT, _INT, _SIZE],
    "dnnl_engine_destroy": [_P],
    "dnnl_stream_create": [_OUT, _P, ctypes.c_uint],
    "dnnl_stream_destroy": [_P],
    "dnnl_stream_wait": [_P],
    "dnnl_set_primitive_cache_capacity": [_INT],
    "dnnl_get_primitive_cache_capacity": [ctypes.POINTER(_INT)],
    "dnnl_memory_desc_create_with_tag": [_OUT, _INT, Dims, _INT, _INT],
    "dnnl_memory_desc_create_with_strides": [_OUT, _INT, Dims, _INT, Dims],
    "dnnl_memory_desc_create_submemory": [_OUT, _P, Dims, Dims],
    "dnnl_memory_desc_permute_axes": [_OUT, _P, ctypes.POINTER(_INT)],
    "dnnl_memory_desc_destroy": [_P],
    "dnnl_memory_create": [_OUT, _P, _P, _P],
    "dnnl_memory_destroy": [_P],
    "dnnl_memory_set_data_handle": [_P, _P],
    "dnnl_primitive_attr_create": [_OUT],
    "dnnl_primitive_attr_destroy": [_P],
    "dnnl_primitive_attr_set_scratchpad_mode": [_P, _INT],
    "dnnl_primitive_attr_set_post_ops": [_P, _P],
    "dnnl_primitive_attr_set_scales_mask": [_P, _INT, _INT],
    "dnnl_primitive_attr_set_zero_points_mask": [_P, _INT, _INT],
    "dnnl_post_ops_create": [_OUT],
    "dnnl_post_ops_destroy": [_P],
    "dnnl_post_ops_append_eltwise": [_P, _INT, _FLOAT, _FLOAT],
    "dnnl_post_ops_append_sum": [_P, _FLOAT, ctypes.c_int32, _INT],
    "dnnl_post_ops_append_binary": [_P, _INT, _P],
    "dnnl_primitive_desc_next_impl": [_P],
    "dnnl_primitive_desc_destroy": [_P],
    "dnnl_primitive_desc_query": [_P, _INT, _INT, _P],
    "dnnl_primitive_create": [_OUT, _P],
    "dnnl_primitive_destroy": [_P],
    "dnnl_primitive_execute": [_P, _P, _INT, _ARGS],
    "dnnl_convolution_forward_primitive_desc_create": [_OUT, _P, _INT, _INT, *[_P] * 4, *[Dims] * 4, _P],
    "dnnl_deconvolution_forward_primitive_desc_create": [_OUT, _P, _INT, _INT, *[_P] * 4, *[Dims] * 4, _P],
    "dnnl_layer_normalization_forward_primitive_desc_create": [_OUT, _P, _INT, *[_P] * 3, _FLOAT, ctypes.c_uint, _P],
    "dnnl_inner_product_forward_primitive_desc_create": [_OUT, _P, _INT, *[_P] * 4, _P],
    "dnnl_matmul_primitive_desc_create": [_OUT, _P, *[_P] * 4, _P],
    "dnnl_reorder_primitive_desc_create": [_OUT, _P, _P, _P, _P, _P],
    "dnnl_concat_primitive_desc_create": [_OUT, _P, _P, _INT, _INT, _HANDLES, _P],
    "dnnl_binary_primitive_desc_create": [_OUT, _P, _INT, _P, _P, _P, _P],
    "dnnl_eltwise_forward_primitive_desc_create": [_OUT, _P, _INT, _INT, _P, _P, _FLOAT, _FLOAT, _P],
    "dnnl_pooling_forward_primitive_desc_create": [_OUT, _P, _INT, _INT, _P, _P, *[Dims] * 5, _P],
    "dnnl_lrn_forward_primitive_desc_create": [_OUT, _P, _INT, _INT, _P, _P, ctypes.c_int64, *[_FLOAT] * 3, _P],
    "dnnl_softmax_forward_primitive_desc_create": [_OUT, _P, _INT, _INT, _P, _P, _INT, _P],
    "dnnl_shuffle_forward_primitive_desc_create": [_OUT, _P, _INT, _P, _P, _INT, ctypes.c_int64, _P],
    "dnnl_resampling_forward_primitive_desc_create": [_OUT, _P, _INT, _INT, ctypes.POINTER(_FLOAT), _P, _P, _P],
    "dnnl_lstm_forward_primitive_desc_create": [_OUT, _P, _INT, _INT, *[_P] * 11, ctypes.c_uint, _P],
    "dnnl_gru_forward_primitive_desc_create": [_OUT, _P, _INT, _INT, *[_P] * 7, ctypes.c_uint, _P],
    "dnnl_lbr_gru_forward_primitive_desc_create": [_OUT, _P, _INT, _INT, *[_P] * 7, ctypes.c_uint, _P],
    "dnnl_vanilla_rnn_forward_primitive_desc_create": [
        _OUT,
        _P,
        _INT,
        _INT,
        _INT,
        *[_P] * 7,
        ctypes.c_uint,
        _FLOAT,
        _FLOAT,
        _P,
    ],
}
#: Functions that return something else: (result, arguments).
OTHER: dict[str, tuple[Any, list[Any]]] = {
    "dnnl_memory_desc_equal": (_INT, [_P, _P]),
    "dnnl_memory_desc_get_size": (_SIZE, [_P]),
    "dnnl_primitive_desc_query_md": (_P, [_P, _INT, _INT]),
}


def declare(library: ctypes.CDLL) -> None:
    """Declare every function used on a loaded library."""
    for name, arguments in STATUS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = _INT, arguments
    for name, (result, arguments) in OTHER.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
