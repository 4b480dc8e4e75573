"""What ONNX Runtime runs of a file, as its optimised model and one run tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from depth import by_day
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.onnxruntime import executed
from edgeplan.engines.onnxruntime.executed import executed_model
from edgeplan.engines.onnxruntime.session import OnnxRuntime
from edgeplan.errors import ModelError
from edgeplan.graph.nodes import ExecutedModel, NodeConfig
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.zoo import prior_models

Weights = Mapping[str, np.ndarray[Any, Any]]
ZOO = ("mobilenetv3_small", "shufflenetv2_0.5", "squeezenet1_1", "mobilenetv2_0.5", "resnet18", "densenet121")


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) / 8


def saved(path: Path, graph: str, weights: Weights = {}, domains: str = "") -> Path:  # noqa: B006  never changed
    """Write a graph in ONNX's textual form, with weights that it names."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1{domains}]> {graph}')
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    onnx.save(model, path)
    return path


def mlp(path: Path, names: Sequence[str] = ("a", "b", "c", "y"), inner: int = 512) -> Path:
    a, b, c, y = names
    text = (
        f"g (float[1,16,256] x) => (float[1,16,256] {y}) "
        f"{{ {a} = MatMul(x, w0) {b} = Add({a}, b0) {c} = Relu({b}) {y} = MatMul({c}, w1) }}"
    )
    return saved(path, text, {"w0": drawn(256, inner), "b0": drawn(inner), "w1": drawn(inner, 256)})


def cnn(path: Path) -> Path:
    text = """g (float[1,3,32,32] x) => (float[1,600] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w0, b0) b = Relu(a) c = Conv(b, w1) d = Add(c, b)
        e = GlobalAveragePool(d) f = Flatten(e) y = Gemm(f, w2, b2) }"""
    weights = {"w0": drawn(160, 3, 3, 3), "b0": drawn(160), "w1": drawn(160, 160, 1, 1), "w2": drawn(160, 600)}
    return saved(path, text, weights | {"b2": drawn(600)})


def dynamic(path: Path) -> Path:
    quantize_dynamic(mlp(path.with_name("float.onnx")), path)
    return path


def qdq(path: Path) -> Path:
    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter([{"x": drawn(1, 3, 32, 32)}])

        def get_next(self) -> Any:
            return next(self.left, None)

    quantize_static(cnn(path.with_name("float.onnx")), path, Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
    return path


def lstm(path: Path) -> Path:
    text = "g (float[20,1,256] x) => (float[s,d,b,h] y) { y, h, c = LSTM <hidden_size = 128> (x, W, R, B) }"
    return saved(path, text, {"W": drawn(1, 512, 256), "R": drawn(1, 512, 128), "B": drawn(1, 1024)})


def dynamic_lstm(path: Path) -> Path:
    quantize_dynamic(lstm(path.with_name("float.onnx")), path)
    return path


def ops(model: ExecutedModel) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(node.config.domain, node.config.op, node.operators) for node in model.nodes]


@pytest.mark.parametrize("name", by_day(ZOO, least=3))
def test_nodes_of_the_zoo_are_those_of_the_profile_with_and_without_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_onnx(prior_models()[name](), tmp_path / "m.onnx")
    graph, found = load_onnx(path), executed_model(path)
    with OnnxRuntime(EngineSettings()).load_profiled(path, graph) as session:
        session.run()
        profiled, _ = session.profile([(0, 1)])
    # two loads of one model may differ in the order of what does not depend on each other, and in names of conversions
    assert Counter((n.config.op, frozenset(n.operators)) for n in found.nodes) == Counter(
        (n.op_type, frozenset(n.members)) for n in profiled
    )
    assert {op.name for op in graph.operators} == {name for node in found.nodes for name in node.operators}
    monkeypatch.setattr(executed, "_LEAST_HOLE_BYTES", 1 << 40)
    whole = executed_model(path)
    assert Counter(n.config for n in whole.nodes) == Counter(n.config for n in found.nodes)
    assert whole.context_bytes == found.context_bytes


@pytest.mark.parametrize("write", [mlp, cnn, dynamic, qdq, lstm, dynamic_lstm])
def test_a_hole_changes_nothing_and_configurations_survive_json(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.onnx")
    holes: list[int] = []
    stand_in = executed._stand_in

    def seen(model: onnx.ModelProto, path: Path, folder: Path) -> int:
        size = stand_in(model, path, folder)
        holes.append((folder / "hole").stat().st_size)
        return size

    monkeypatch.setattr(executed, "_stand_in", seen)
    found = executed_model(path)
    assert holes[0] > executed._LEAST_HOLE_BYTES
    monkeypatch.setattr(executed, "_MOST_WRITTEN_BYTES", 0)  # another order in the file of the optimised model
    assert executed_model(path) == found
    monkeypatch.setattr(executed, "_LEAST_HOLE_BYTES", 1 << 40)
    assert executed_model(path) == found
    assert holes[1:] == [holes[0], 0]
    for node in found.nodes:
        again = NodeConfig.from_json(node.config.to_json())
        assert again == node.config
        assert again.key == node.config.key


def test_fused_nodes_hold_their_operators(tmp_path: Path) -> None:
    found = executed_model(cnn(tmp_path / "m.onnx"))
    assert ops(found) == [
        ("com.microsoft.nchwc", "Conv", ("conv_0", "relu_1")),
        ("com.microsoft.nchwc", "Conv", ("conv_2", "add_3")),
        ("com.microsoft.nchwc", "GlobalAveragePool", ("globalaveragepool_4",)),
        ("com.microsoft.nchwc", "ReorderOutput", ()),
        ("", "Flatten", ("flatten_5",)),
        ("", "Gemm", ("gemm_6",)),
    ]
    summed = found.nodes[1].config
    assert [one and (one.shape, one.constant) for one in summed.inputs] == [
        ((1, 160, 32, 32), False),
        ((160, 160, 1, 1), True),
        None,
        ((1, 160, 32, 32), False),
    ]
    assert found.nodes[0].config.attribute("activation", "") == "Relu"
    assert found.told_by.startswith("onnxruntime 1.")


def test_products_between_reshapes_hold_their_operators(tmp_path: Path) -> None:
    text = """g (float[2,16,256] x) => (float[2,16,4,64] y)
        { a = MatMul(x, w) b = Add(a, v) s = Constant <value = int64[4] {2, 16, 4, 64}> () y = Reshape(b, s) }"""
    found = executed_model(saved(tmp_path / "m.onnx", text, {"w": drawn(256, 256), "v": drawn(256)}))
    assert [one for one in ops(found) if one[2]] == [("", "Gemm", ("matmul_0", "add_1")), ("", "Reshape", ("reshape_3",))]
    shape = found.nodes[-1].config.inputs[1]
    assert shape is not None
    assert shape.values == (2, 16, 4, 64)


def test_eight_bits_are_as_they_are(tmp_path: Path) -> None:
    found = executed_model(dynamic(tmp_path / "m.onnx"))
    assert [node.config.op for node in found.nodes] == ["DynamicQuantizeMatMul", "Relu", "DynamicQuantizeMatMul"]
    assert {"matmulinteger_2", "add_5"} <= set(found.nodes[0].operators)
    weights = found.nodes[0].config.inputs[1]
    assert weights is not None
    assert (weights.dtype, weights.shape, weights.constant) == ("int8", (256, 512), True)
    (recurrent,) = executed_model(dynamic_lstm(tmp_path / "lstm.onnx")).nodes
    assert recurrent.config.op == "DynamicQuantizeLSTM"
    inside = executed_model(qdq(tmp_path / "qdq.onnx"))
    assert ("com.microsoft", "QGemm") in {(node.config.domain, node.config.op) for node in inside.nodes}


CONTROL = """g (float[2,3] x, bool c, int64 n) => (float[2,3] y, float[a,b] z, float[2,3] q) {
    y = If (c) <then_branch = t () => (float[2,3] r) { t1 = Relu(x) r = Add(t1, x) },
                else_branch = e () => (float[2,3] r) { r = Sub(x, x) }>
    k = Constant <value = bool {1}> ()
    z = Loop (n, k, x) <body = b (int64 i, bool ci, float[p,3] v) => (bool co, float[p2,3] vo)
        { co = Identity(ci) v1 = Neg(x) vo = Concat <axis = 0> (v, v1) }>
    q = HardSwish(x) }"""


@pytest.mark.parametrize(("given", "branch"), [("true", ("relu_0", "add_1")), ("false", ("sub_0",))])
def test_of_branches_the_one_that_ran_and_of_loops_how_often(given: str, branch: tuple[str, ...], tmp_path: Path) -> None:
    wanted = Preparation.given(None, None, {"c": given, "n": 3}, None)
    found = executed_model(saved(tmp_path / "m.onnx", CONTROL), wanted=wanted)
    by_operator = [(node.operators, node.times) for node in found.nodes]
    assert [one for one in by_operator if one[0] and one[0][0] in ("relu_0", "add_1", "sub_0")] == [((b,), 1) for b in branch]
    assert by_operator[-1] == (("if_0",), 1)
    assert (("neg_1",), 3) in by_operator
    grown = [node.config.outputs[0] for node in found.nodes if node.config.op == "Concat"]
    assert [one and one.shape for one in grown] == [(4, 3), (6, 3), (8, 3)]
    assert [node.operators for node in found.nodes if node.config.op in ("HardSigmoid", "Mul")] == [("hardswish_3",)] * 2
    (loop,) = (node.config for node in found.nodes if node.config.op == "Loop")
    assert not loop.body
    assert loop.outputs[0] is not None
    assert loop.outputs[0].shape == (8, 3)
    none = executed_model(tmp_path / "m.onnx", wanted=Preparation.given(None, None, {"c": given, "n": 0}, None))
    assert "Neg" not in {node.config.op for node in none.nodes}


def test_weights_beyond_two_gigabytes_are_neither_there_nor_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, rows, width = 10, 1 << 16, 1 << 10
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Gather", [f"w{i}", "at"], [f"g{i}"]) for i in range(tables)]
    nodes.append(helper.make_node("Sum", [f"g{i}" for i in range(tables)], ["y"]))
    inputs, outputs = (helper.make_tensor_value_info("at", TensorProto.INT64, [4]), helper.make_tensor_value_info("y", 1, None))
    graph = helper.make_graph(nodes, "g", [inputs], [outputs])
    for i in range(tables):
        tensor = graph.initializer.add(name=f"w{i}", data_type=1, dims=[rows, width], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "not_there"), ("offset", i * rows * width * 4), ("length", rows * width * 4)):
            tensor.external_data.add(key=key, value=str(value))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    used: list[int] = []
    profiled = executed._profiled

    def watched(*given: Any, **more: Any) -> Any:
        found = profiled(*given, **more)
        used.extend(file.stat().st_blocks * 512 for file in given[1].iterdir())
        return found

    monkeypatch.setattr(executed, "_profiled", watched)
    found = executed_model(path)
    assert found.context_bytes < 1 << 20  # of tables it reads what it takes
    assert sum(used) < 1 << 20
    assert Counter(node.config.op for node in found.nodes) == {"Gather": tables, "Sum": 1}


def test_open_axes_have_the_sizes_of_the_command_line(tmp_path: Path) -> None:
    text = "g (float[batch, seq, 8] x, float[batch, seq, 8] z) => (float[batch, seq, 8] y) { y = Add(x, z) }"
    path = saved(tmp_path / "m.onnx", text)
    with pytest.raises(ModelError, match="leaves seq open"):
        executed_model(path)
    for batch in (None, 4):
        (node,) = executed_model(path, wanted=Preparation.given(None, {"x": (batch or 1, 5, 8)}, None, batch)).nodes
        assert [one and one.shape for one in node.config.inputs] == [(batch or 1, 5, 8)] * 2
    with pytest.raises(ModelError, match="has no input 'other'"):
        executed_model(path, wanted=Preparation.given(None, None, {"other": 1}, None))


def test_integers_stay_within_an_axis_of_one(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", "g (int64[64] at) => (float[64, 4] y) { y = Gather(w, at) }", {"w": drawn(1, 4)})
    assert [node.config.op for node in executed_model(path).nodes] == ["Gather"]


def test_equal_kernels_of_other_names_are_equal(tmp_path: Path) -> None:
    one, other = (executed_model(mlp(tmp_path / "m.onnx", names)) for names in ("abcy", ("p", "q", "r", "s")))
    assert [node.config for node in one.nodes] == [node.config for node in other.nodes]
    wider = executed_model(mlp(tmp_path / "m.onnx", inner=640))
    assert [node.config.key for node in one.nodes] != [node.config.key for node in wider.nodes]


def test_exponents_and_tensors_of_attributes_are_told(tmp_path: Path) -> None:
    text = """g (float[4, 8] x, int64[2] s) => (float[4, 8] y, float[p, q] z, float[4, 8] c)
        { y = Pow(x, e) z = ConstantOfShape <value = float[1] {2}> (s) c = Pow(x, h) }"""
    weights = {"e": np.array(3, np.float32), "h": np.array(0.3, np.float32)}
    nodes = {node.operators: node.config for node in executed_model(saved(tmp_path / "m.onnx", text, weights)).nodes}
    assert [one and one.values for one in nodes["pow_0",].inputs] == [None, (3,)]
    assert [one and one.values for one in nodes["pow_2",].inputs] == [None, None]
    assert nodes["constantofshape_1",].body
    assert not nodes["constantofshape_1",].attributes


def test_operators_of_other_domains_and_texts_run(tmp_path: Path) -> None:
    text = """g (float[4, 8] x, string[3] s) => (float[4, 8] y, int64[3] z)
        { y = com.microsoft.Gelu(x) z = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_int64s = [7]> (s) }"""
    found = executed_model(saved(tmp_path / "m.onnx", text, domains=', "ai.onnx.ml": 2'))
    assert {(node.config.domain, node.config.op) for node in found.nodes} == {
        ("com.microsoft", "Gelu"),
        ("ai.onnx.ml", "LabelEncoder"),
    }


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("g (float[4] x) => (float[4] y) { y = com.microsoft.Nonesuch(x) }", "has no operator com.microsoft::Nonesuch"),
        ("g (float[4] x) => (float[4] y) { y = Relu(nowhere) }", "'nowhere' is read, but no node writes it"),
        ("g (float[4] x) => (float[4] y) { z = Relu(x) }", "nothing writes the output 'y'"),
        ("g (float[4] x, float[3] z) => (float[4] y) { y = Add(x, z) }", "cannot run the model"),
        ("g (float[4] x) => (float[4] y) { s = Constant <value = int64[1] {3}> () y = Reshape(x, s) }", "cannot run the model"),
    ],
)
def test_what_cannot_run_is_said_in_three_parts(
    text: str, what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "m.onnx", text)
    with pytest.raises(ModelError) as raised:
        executed_model(path)
    assert what in raised.value.what
    assert str(path) in raised.value.where
    assert raised.value.next_step
    assert capfd.readouterr().err == ""


def test_damaged_files_are_refused_before_the_engine_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("the engine saw it")

    monkeypatch.setattr(executed, "_profiled", never)
    path = mlp(tmp_path / "m.onnx")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="not a readable ONNX model"):
        executed_model(path)
    model = onnx.load_model_from_string(whole)
    model.graph.initializer[0].raw_data = b"short"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="holds 5 bytes"):
        executed_model(path)
