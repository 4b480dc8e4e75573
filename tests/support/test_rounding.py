"""The same rows make the same predictors, whatever kernels NumPy and its linear algebra take for the processor."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from edgeplan.chapters.prediction.evaluation.tables import fit_linear
from edgeplan.support.numerics import nine_digits, nine_digits_each

TRAIN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
from executed_nodes import CACHE, drawn, samples
from edgeplan.predictors.nodes.learner import learn
from edgeplan.predictors.nodes.predictor import NodePredictor
from edgeplan.predictors.nodes.storing import save
from edgeplan.predictors.nodes.predictor import Relation, Trust
from edgeplan.predictors.settings import TrainingSettings
rng = np.random.default_rng(1)
kernels = learn(samples(drawn(rng, 300), rng=rng), CACHE, TrainingSettings(trials=0))
save(NodePredictor(kernels, Relation(call_us=1.0), Trust()), Path(sys.argv[2]))
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
