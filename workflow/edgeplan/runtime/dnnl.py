"""oneDNN's C API, typed: small owners of handles, every status checked.

Calls go through `ctypes.CDLL`, which releases the GIL while they run. Handles are freed when their owner is dropped; a
descriptor queried from a primitive descriptor belongs to it, so both are kept together here.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.shapes import FLOAT32
from edgeplan.runtime import constants
from edgeplan.runtime.library import open_library

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
    "dnnl_vanilla_rnn_forward_primitive_desc_create": [_OUT, _P, *[_INT] * 3, *[_P] * 7, ctypes.c_uint, _FLOAT, _FLOAT, _P],
}
#: Functions that return something else: (result, arguments).
OTHER: dict[str, tuple[Any, list[Any]]] = {
    "dnnl_memory_desc_equal": (_INT, [_P, _P]),
    "dnnl_memory_desc_get_size": (_SIZE, [_P]),
    "dnnl_primitive_desc_query_md": (_P, [_P, _INT, _INT]),
}


_WARM_UP_VALUES = 1 << 16


class Handle:
    """Owner of one handle of the library."""

    __slots__ = ("_destroy", "_keep", "value")

    def __init__(self, value: int, destroy: Callable[[int], int], keep: object = None) -> None:
        self.value = value
        self._destroy = destroy
        self._keep = keep  # what must outlive this handle

    def forget(self) -> None:
        """Let go of what was kept for it: nothing will be asked of that any more."""
        self._keep = None

    def __del__(self) -> None:
        self._destroy(self.value)


#: What is given with a call besides operands.
SCALES, ZERO_POINTS = "scales", "zero_points"


class Mask(NamedTuple):
    """A mask says along which axes, a bit each, of an argument there are several `SCALES` or `ZERO_POINTS`; 0: one for all."""

    kind: str
    argument: int
    axes: int

    @property
    def function(self) -> str:
        """Return the name of the library's function that sets it."""
        return f"dnnl_primitive_attr_set_{self.kind}_mask"


class Unsupported(Exception):  # noqa: N818  not an error: the library offers no kernel for what was asked
    """oneDNN has no implementation of what was asked."""


def dims(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Build an array of the type `dnnl_dims_t`."""
    return Dims(*values, *[0] * (DIMS_LENGTH - len(values)))


class Dnnl:
    """The loaded library with one CPU engine. May be used from several threads; streams belong to one thread each."""

    def __init__(self) -> None:
        self._library, self.info = open_library()
        functions: dict[str, tuple[Any, list[Any]]] = {name: (_INT, given) for name, given in STATUS.items()} | OTHER
        for name, (result, arguments) in functions.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        # of the OpenMP runtime that the library itself is linked to
        self._set_threads: Any = getattr(self._library, "omp_set_num_threads", None)
        if self._set_threads is not None:
            self._set_threads.restype, self._set_threads.argtypes = None, [_INT]
        self.engine = self.make("engine", "dnnl_engine_create", constants.CPU, 0)

    def set_threads(self, count: int) -> None:
        """Threads of the primitives that the calling thread executes from now on (OpenMP's setting is per thread)."""
        if self._set_threads is not None:
            self._set_threads(count)
        elif not (count == 1 and self.info.cpu_runtime == "sequential"):
            raise DeviceError(
                f"this oneDNN threads by {self.info.cpu_runtime}; only OpenMP takes a number of threads",
                where=self.info.path,
                next_step="pip install 'edgeplan[runtime]'",
            )

    def team(self, threads: int) -> int:
        """The address of what has that many threads compute together; 0 for one, or without libgomp."""
        function = getattr(self._library, "GOMP_parallel", None) if threads > 1 else None
        return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0

    def bind_threads(self, cores: Sequence[int]) -> None:
        """Each of the threads that compute for the calling one stays on a core of its own from now on, this one on the first.

        The system else leaves two of them on one core for long: a model then takes twice the time. Nothing happens where the
        library does not thread by libgomp. There are as many cores as threads compute.
        """
        try:
            together, number = self._library.GOMP_parallel, self._library.omp_get_thread_num
        except AttributeError:
            return
        failed: list[OSError] = []

        def bind(_: int | None) -> None:
            try:
                os.sched_setaffinity(0, {cores[number()]})
            except OSError as error:
                failed.append(error)

        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(bind)
        together.restype, together.argtypes = None, [type(function), ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        together(function, None, len(cores), 0)
        if failed:
            raise failed[0]

    @property
    def primitive_cache(self) -> int:
        """Return the number of primitives that the library keeps for reuse."""
        capacity = ctypes.c_int()
        self.check(self._library.dnnl_get_primitive_cache_capacity(ctypes.byref(capacity)), "capacity of the cache")
        return capacity.value

    def set_primitive_cache(self, capacity: int) -> None:
        """Set the number of primitives that the library keeps for reuse; 0 for profiling, where every creation must be paid."""
        self._call("dnnl_set_primitive_cache_capacity", capacity)

    @contextmanager
    def without_primitive_cache(self) -> Iterator[None]:
        """Nothing is taken from the library's cache of primitives meanwhile.

        What it offers depends on the cache: descriptors that differ in the strides of axes of size 1 count as equal there, so
        an implementation that was found for one of them is offered for the other, which a fresh process does not do.
        """
        capacity = self.primitive_cache
        self.set_primitive_cache(0)
        try:
            yield
        finally:
            self.set_primitive_cache(capacity)

    def _call(self, function: str, *arguments: Any) -> None:
        """Call a function that returns a status."""
        self.check(getattr(self._library, function)(*arguments), function)

    def check(self, status: int, what: str) -> None:
        """Turn a status into an exception."""
        if status == constants.SUCCESS:
            return
        if status in (constants.UNIMPLEMENTED, constants.LAST_IMPL_REACHED):
            raise Unsupported(what)
        raise DeviceError(
            f"{what} failed: {constants.STATUS_NAMES.get(status, status)}",
            where=f"oneDNN {self.info.version}",
            next_step="report the model; ONEDNN_VERBOSE=all prints what the library was asked",
        )

    def check_execution(self, status: int) -> None:
        """Turn the status of a call of a primitive or a compiled kernel into an exception."""
        if status == constants.BAD_INDEX:
            raise ModelError(
                "an index lies outside the axis that it picks from", where="the model, run", next_step="correct the inputs"
            )
        self.check(status, "dnnl_primitive_execute")

    def make(self, kind: str, function: str, *arguments: Any, keep: object = None) -> Handle:
        """Call a function that creates a handle through its first argument."""
        out = ctypes.c_void_p()
        self._call(function, ctypes.byref(out), *arguments)
        return Handle(out.value or 0, getattr(self._library, f"dnnl_{kind}_destroy"), keep)

    # Descriptors and memory

    def descriptor(self, shape: Sequence[int], tag: int, dtype: str = FLOAT32) -> Handle:
        """A memory descriptor by format tag."""
        function = "dnnl_memory_desc_create_with_tag"
        return self.make("memory_desc", function, len(shape), dims(shape), constants.TYPES[dtype], tag)

    def bytes_of(self, count: int) -> Handle:
        """A memory descriptor of bytes, whatever they hold."""
        function = "dnnl_memory_desc_create_with_tag"
        return self.make("memory_desc", function, 1, dims((count,)), constants.U8, constants.PLAIN_TAGS[1])

    def strided(self, shape: Sequence[int], strides: Sequence[int], dtype: str = FLOAT32) -> Handle:
        """A memory descriptor by strides in elements."""
        function = "dnnl_memory_desc_create_with_strides"
        return self.make("memory_desc", function, len(shape), dims(shape), constants.TYPES[dtype], dims(strides))

    def submemory(self, parent: Handle, shape: Sequence[int], offsets: Sequence[int]) -> Handle:
        """A view of a part of `parent`."""
        out = ctypes.c_void_p()
        create = self._library.dnnl_memory_desc_create_submemory
        if create(ctypes.byref(out), parent.value, dims(shape), dims(offsets)) != constants.SUCCESS:
            raise Unsupported("dnnl_memory_desc_create_submemory")
        return Handle(out.value or 0, self._library.dnnl_memory_desc_destroy)

    def permuted(self, parent: Handle, permutation: Sequence[int]) -> Handle:
        """`parent` with its axis i renamed `permutation[i]`."""
        axes = (ctypes.c_int * len(permutation))(*permutation)
        return self.make("memory_desc", "dnnl_memory_desc_permute_axes", parent.value, axes)

    def size(self, descriptor: int) -> int:
        """Bytes of a memory of that descriptor (padding included)."""
        return int(self._library.dnnl_memory_desc_get_size(descriptor))

    def equal(self, a: int, b: int) -> bool:
        """Tell whether two descriptors describe the same layout."""
        return bool(self._library.dnnl_memory_desc_equal(a, b))

    def memory(self, descriptor: int, address: int) -> Handle:
        """A memory over a buffer that the caller owns."""
        return self.make("memory", "dnnl_memory_create", descriptor, self.engine.value, address)

    # Primitives

    def primitive(self, descriptor: Handle) -> Handle:
        """Create (generate) the primitive that a primitive descriptor describes."""
        return self.make("primitive", "dnnl_primitive_create", descriptor.value, keep=descriptor)

    def next_implementation(self, descriptor: Handle) -> bool:
        """Move a primitive descriptor to the next implementation; False at the last."""
        return bool(self._library.dnnl_primitive_desc_next_impl(descriptor.value) == constants.SUCCESS)

    def implementation(self, address: int) -> str:
        """The library's name of the implementation of a primitive descriptor, e.g. `brgconv:avx512_core`."""
        text = ctypes.c_char_p()
        self._call("dnnl_primitive_desc_query", address, constants.QUERY_IMPL_INFO, 0, ctypes.byref(text))
        return (text.value or b"").decode()

    def queried(self, descriptor: Handle, what: int, index: int = 0) -> int:
        """A memory descriptor of a primitive descriptor, which owns it."""
        return int(self._library.dnnl_primitive_desc_query_md(descriptor.value, what, index) or 0)

    def scratch_bytes(self, descriptor: Handle) -> int:
        """Return the bytes of scratchpad that the implementation needs."""
        return self.size(self.queried(descriptor, constants.QUERY_SCRATCHPAD_MD))

    def reorder(self, source: int, target: int) -> Handle:
        """Primitive descriptor of a layout conversion, scratchpad by the user."""
        attributes, engine = self.attributes(), self.engine.value
        given = (source, engine, target, engine, attributes.value)
        return self.make("primitive_desc", "dnnl_reorder_primitive_desc_create", *given)

    def attributes(self, post_ops: Handle | None = None, masks: Sequence[Mask] = ()) -> Handle:
        """Attributes with the scratchpad supplied by the user, post-operations, and what is told of scales and zero points."""
        attributes = self.make("primitive_attr", "dnnl_primitive_attr_create")
        self._call("dnnl_primitive_attr_set_scratchpad_mode", attributes.value, constants.SCRATCHPAD_USER)
        if post_ops is not None:
            self._call("dnnl_primitive_attr_set_post_ops", attributes.value, post_ops.value)
        for mask in masks:
            self._call(mask.function, attributes.value, mask.argument, mask.axes)
        return attributes

    def post_ops(self) -> Handle:
        """An empty list of post-operations."""
        return self.make("post_ops", "dnnl_post_ops_create")

    def append(self, post_ops: Handle, kind: str, *arguments: Any) -> None:
        """Append a post-operation: `eltwise` (algorithm, alpha, beta), `sum` (scale, 0, type), `binary` (algorithm, md)."""
        self._call(f"dnnl_post_ops_append_{kind}", post_ops.value, *arguments)

    # Execution

    def stream(self) -> Handle:
        """An in-order stream; primitives run in the thread that executes them."""
        return self.make("stream", "dnnl_stream_create", self.engine.value, constants.IN_ORDER)

    @property
    def execute(self) -> Callable[[int, int, int, ctypes.Array[ExecArg]], int]:
        """The raw `dnnl_primitive_execute(primitive, stream, count, arguments)`: the one call of the hot path."""
        function: Callable[[int, int, int, ctypes.Array[ExecArg]], int] = self._library.dnnl_primitive_execute
        return function

    def warm_up(self, threads: int) -> None:
        """Execute something small once, so that what the library does at first use is not taken for the cost of a kernel."""
        self.set_threads(threads)
        descriptor = self.descriptor((_WARM_UP_VALUES,), constants.PLAIN_TAGS[1])
        relu = constants.ELTWISE["relu"]
        function, attributes = "dnnl_eltwise_forward_primitive_desc_create", self.attributes()
        given = (self.engine.value, constants.FORWARD_INFERENCE, relu, descriptor.value, descriptor.value, 0.0, 0.0)
        primitive = self.primitive(self.make("primitive_desc", function, *given, attributes.value))
        values = (ctypes.c_float * _WARM_UP_VALUES)()
        memory, stream = self.memory(descriptor.value, ctypes.addressof(values)), self.stream()
        self.run(primitive, stream, ((constants.ARG_SRC, memory), (constants.ARG_DST, memory)))

    def run(self, primitive: Handle, stream: Handle, arguments: Sequence[tuple[int, Handle]]) -> None:
        """Execute a primitive once and wait."""
        array = (ExecArg * len(arguments))(*[ExecArg(arg, memory.value) for arg, memory in arguments])
        self.check(self.execute(primitive.value, stream.value, len(arguments), array), "dnnl_primitive_execute")
        self._call("dnnl_stream_wait", stream.value)
