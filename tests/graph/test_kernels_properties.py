"""Kernel configurations: their JSON, and kernels cut from graphs."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.kernels import KernelConfig, make_kernel

_SIZES = st.integers(0, 5000)
_VALUES = {"int": _SIZES, "bool": st.booleans(), "str": st.sampled_from(["", "relu", "conv++bn", "02134", "float16", 'a"b'])}


@st.composite
def configs(draw: st.DrawFn) -> KernelConfig:
    return KernelConfig(**{f.name: draw(_VALUES[str(f.type)]) for f in fields(KernelConfig)})


@settings(max_examples=examples(80), deadline=None)
@given(configs())
def test_json_is_an_inverse_pair(config: KernelConfig) -> None:
    assert KernelConfig.from_json(config.to_json()) == config


@settings(max_examples=examples(80), deadline=None)
@given(configs(), configs())
def test_json_is_canonical(a: KernelConfig, b: KernelConfig) -> None:
    assert (a.to_json() == b.to_json()) == (a == b)
    assert a.to_json() == replace(a).to_json()


def test_json_leaves_defaults_out() -> None:
    assert json.loads(KernelConfig("relu", "relu", out_channels=7).to_json()) == {
        "kind": "relu",
        "type": "relu",
        "out_channels": 7,
    }


@settings(max_examples=examples(60), deadline=None)
@given(
    channels=st.integers(1, 9),
    out=st.integers(1, 9),
    size=st.integers(5, 20),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    tail=st.lists(st.sampled_from(["bn", "relu", "relu6", "hswish", "add"]), max_size=3, unique=True),
)
def test_a_convolution_with_its_tail_is_described_whole(
    *, channels: int, out: int, size: int, kernel: int, stride: int, dilation: int, bias: bool, tail: list[str]
) -> None:
    b = GraphBuilder("k", (1, channels, size, size))
    x = b.conv(b.input, out, kernel, stride, dilation=dilation, bias=bias, name="c")
    side = b.add_input("side", b.shape(x))
    names = ["c"]
    for index, step in enumerate(tail):
        name = f"t{index}"
        x = (
            b.bn(x, name=name)
            if step == "bn"
            else b.add(x, side, name=name)
            if step == "add"
            else b.activation(x, step, name=name)
        )
        names.append(name)
    graph = b.build(x)
    kernel_found = make_kernel(graph, names)
    config = kernel_found.config
    assert (kernel_found.name, kernel_found.members, kernel_found.outputs) == ("c", tuple(names), (x,))
    assert kernel_found.inputs == (("input", "side") if "add" in tail else ("input",))
    assert config.type == "++".join(["dwconv" if config.kind == "dwconv" else "conv", *tail])
    assert (config.in_channels, config.in_height, config.out_channels) == (channels, size, out)
    assert (config.out_height, config.out_width) == graph.shape("c")[2:]
    assert (config.kernel_h, config.stride_w, config.dilation_h) == (kernel, stride, dilation)
    assert config.pad_top == config.pad_right == dilation * (kernel - 1) // 2
    assert config.residual == ("add" in tail)
    assert config.activation == next((t for t in reversed(tail) if t not in ("bn", "add")), "")
    assert config.bias == (bias or tail[:1] == ["bn"])
    assert KernelConfig.from_json(config.to_json()) == config
