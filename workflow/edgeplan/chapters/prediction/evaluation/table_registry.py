"""This registry lists tables; a new one is one function and one line of `TABLES`."""

from __future__ import annotations

from collections.abc import Mapping

from edgeplan.chapters.prediction.evaluation import tables_baselines as baselines
from edgeplan.chapters.prediction.evaluation import tables_fusion as fusion
from edgeplan.chapters.prediction.evaluation import tables_prediction as prediction
from edgeplan.chapters.prediction.evaluation import tables_sampling as sampling
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.reporting.kit import TableSpec, registry

#: Every table by id, in the order of the report.
TABLES: Mapping[str, TableSpec[Evidence]] = registry(
    TableSpec(
        "table_01",
        "MobileNetV2: operators and kernels summed",
        prediction.table_01,
        ("models.predicted_ms", "models.operator_sum_ms"),
    ),
    TableSpec(
        "table_02",
        "Families of the zoo",
        prediction.table_02,
        ("zoo",),
    ),
    TableSpec(
        "table_03",
        "A fusion test: pool, relu",
        fusion.table_03,
        ("test_cases",),
    ),
    TableSpec(
        "table_04",
        "Kernels of ResNet18",
        fusion.table_04,
        ("resnet18_kernels",),
    ),
    TableSpec(
        "table_05",
        "Sample space of Conv",
        sampling.table_05,
        ("prior",),
    ),
    TableSpec(
        "table_06",
        "Kernels, features and measured rows",
        sampling.table_06,
        ("kernels",),
    ),
    TableSpec("table_07", "Devices", sampling.table_07, ("environment",)),
    TableSpec(
        "table_08",
        "Whole-model prediction by family",
        prediction.table_08,
        ("models.predicted_ms",),
    ),
    TableSpec(
        "table_09",
        "Kernel predictors",
        sampling.table_09,
        ("quality",),
    ),
    TableSpec(
        "table_10",
        "Adaptive sampling against random sampling",
        sampling.table_10,
        ("samplers",),
    ),
    TableSpec(
        "table_11",
        "Predictors of another device",
        prediction.table_11,
        ("transfer",),
    ),
    TableSpec(
        "table_12",
        "Measuring cost",
        sampling.table_12,
        ("sampling", "calibration"),
    ),
    TableSpec(
        "table_baselines",
        "Baselines on unseen families",
        baselines.table_baselines,
        ("models.predicted_ms", "models.macs", "models.memory_bytes"),
    ),
    TableSpec(
        "table_conv_fusion",
        "Does Conv cost what Conv++bn++relu does?",
        fusion.table_conv_fusion,
        ("conv_fusion",),
    ),
)
