"""Small parts: machine, topology, arrays for native code, lazy imports, answers of workers, rounding."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from ctypes import ArgumentError, c_int, c_int64
from pathlib import Path

import msgspec
import numpy as np
import pydantic
import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from edgeplan import native
from edgeplan.chapters.prediction.evaluation.tables import fit_linear
from edgeplan.support.lazy import lazily
from edgeplan.support.machine import machine_text
from edgeplan.support.numerics import array, nine_digits, nine_digits_each, when_needed
from edgeplan.support.subprocesses import program_command, run
from edgeplan.support.topology import topological
from edgeplan.support.workers import ColdRunError, answered
from edgeplan.terminal import milliseconds


def test_the_native_library_tells_the_same_of_this_machine() -> None:
    assert native.function("machine", ctypes.c_char_p)().decode() == machine_text()


@pytest.mark.parametrize(
    ("before", "order"),
    [([(), (), ()], [0, 1, 2]), ([(3,), (0,), (), ()], [2, 3, 0, 1]), ([(1,), (0,), (), (1, 2), (2,)], [2, 4]), ([(0,)], [])],
)
def test_what_waits_for_nothing_keeps_its_place_and_circles_go(before: list[tuple[int, ...]], order: list[int]) -> None:
    assert topological(before) == order


_both_ends = when_needed("both_ends", c_int, array(np.int64), c_int64, array(np.int64), c_int64)


@pytest.mark.parametrize("order", [[0, 1], np.zeros(2), np.zeros(2, np.int32), np.zeros(2, ">i8"), np.zeros(4, np.int64)[::2]])
def test_arrays_of_another_kind_or_with_gaps_are_refused(order: object) -> None:
    with pytest.raises(ArgumentError):
        _both_ends()(np.ones((5, 2), np.int64), 2, order, 4)


def test_what_is_written_is_seen() -> None:
    rows = np.array([[-1, -1], [2, 1], [0, 0], [1, 1], [1, 1]])
    assert _both_ends()(rows, 2, np.arange(2), 3)
    assert rows[0].tolist() == [0, 2]


def test_a_missing_library_or_attribute_is_told_on_use() -> None:
    missing = lazily("no_such_library_anywhere")
    with pytest.raises(ImportError, match="no_such_library_anywhere"):
        missing.anything()
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        lazily("json").nothing_of_that_name()


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    built: int


class _Model(pydantic.BaseModel):
    built: int


@pytest.mark.parametrize("kind", [_Record, _Model])
def test_an_answer_is_a_value_of_its_type(kind: type[_Record | _Model]) -> None:
    assert answered(kind, "building", 0, b'{"built": 3}', b"").built == 3


@pytest.mark.parametrize("kind", [_Record, _Model])
@pytest.mark.parametrize("text", [b"", b"Segmentation fault", b"[]", b'{"built": "many"}', b"\xff"])
def test_an_answer_that_does_not_fit_ends_in_one_message_with_the_last_words(kind: type[_Record | _Model], text: bytes) -> None:
    with pytest.raises(ColdRunError, match=r"building: the answer does not fit its schema: (?s:.*)out of paper"):
        answered(kind, "building", 0, text, b"printer:\nout of paper\n")


def test_a_process_that_failed_is_not_read() -> None:
    with pytest.raises(ColdRunError, match="building: the process"):
        answered(_Record, "building", 3, b'{"built": 3}', b"")


def test_what_libraries_print_is_no_answer() -> None:
    said = "print('python'); sys.stdout.flush(); ctypes.CDLL(None).puts(b'library'); ctypes.CDLL(None).fflush(None)"
    code = f"import ctypes, os, sys; own = take_stdout(); {said}; os.write(own, b'answer')"
    done = run([sys.executable, "-c", f"from edgeplan.support.own_process import take_stdout; {code}"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"answer", b"python\nlibrary\n")


def test_processes_keep_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    done = run(program_command(sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"))
    assert done.stdout == b"False\n"


TRAIN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
from executed_nodes import CACHE, drawn, samples
from edgeplan.predictors.nodes.learner import learn
from edgeplan.predictors.nodes.predictor import NodePredictor
from edgeplan.predictors.nodes.storing import save_predictor
from edgeplan.predictors.nodes.predictor import Relation, Trust
from edgeplan.predictors.settings import TrainingSettings
rng = np.random.default_rng(1)
kernels = learn(samples(drawn(rng, 300), rng=rng), CACHE, TrainingSettings(trials=0))
save_predictor(NodePredictor(kernels, Relation(call_us=1.0), Trust()), Path(sys.argv[2]))
"""


def test_predictors_are_the_same_on_a_processor_of_fewer_instructions(tmp_path: Path) -> None:
    """Only intervals, which are logarithms, may end in another digit: NumPy computes those otherwise with AVX-512."""
    saved, cards = [], []
    less = " ".join(name for name in __cpu_dispatch__ if __cpu_features__[name])
    for core, without in (("Haswell", ""), ("Prescott", less)):
        folder = tmp_path / core
        command = [sys.executable, "-c", TRAIN, str(Path(__file__).parents[1] / "helpers"), str(folder)]
        given = {"OPENBLAS_CORETYPE": core, "NPY_DISABLE_CPU_FEATURES": without}
        subprocess.run(command, check=True, env=os.environ | given)
        cards.append(json.loads((folder / "card.json").read_text(), parse_float=lambda text: nine_digits(float(text))))
        saved.append({path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "card.json"})
    assert saved[0] == saved[1]
    assert cards[0] == cards[1]


def test_numbers_keep_nine_digits_and_whole_ones_all() -> None:
    assert nine_digits(1.23456789012e-7) == 1.23456789e-7
    assert nine_digits(12345678901) == 12345678901
    assert nine_digits_each(np.array([0.0, -2 / 3, 1e300])).tolist() == [0.0, -0.666666667, 1e300]


@pytest.mark.parametrize("seed", range(3))
def test_solutions_do_not_hold_the_last_digits_of_a_solver(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.uniform(1, 1e6, (60, 2))
    latency = rng.uniform(1, 100, 60)
    order = rng.permutation(60)  # sums in another order end in other digits
    line = fit_linear(matrix, latency)
    assert line.tolist() == fit_linear(matrix[order], latency[order]).tolist()


@pytest.mark.parametrize(
    ("ms", "told"), [(1234.567, "1234.57 ms"), (0.1, "0.10 ms"), (0.0987, "0.099 ms"), (0.0041, "0.0041 ms"), (0.0, "0.00 ms")]
)
def test_times_have_two_digits_however_short_they_are(ms: float, told: str) -> None:
    assert milliseconds(ms) == told
