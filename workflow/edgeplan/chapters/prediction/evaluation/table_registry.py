"""The registry of tables. A new table is one function and one line of `TABLES`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.chapters.prediction.evaluation import tables_baselines as baselines
from edgeplan.chapters.prediction.evaluation import tables_fusion as fusion
from edgeplan.chapters.prediction.evaluation import tables_prediction as prediction
from edgeplan.chapters.prediction.evaluation import tables_sampling as sampling
from edgeplan.chapters.prediction.evaluation.evidence import Shown

_ALL = (
    Shown(
        "table_01",
        "MobileNetV2: operators and kernels summed",
        "Latency of the whole model against the sums of its operators' and its kernels' predicted latencies (paper: Table 1).",
        prediction.table_01,
        ("models",),
        ("predicted_ms", "operator_sum_ms"),
    ),
    Shown(
        "table_02",
        "Families of the zoo",
        "Average multiply-adds (the paper's FLOPs) of the generated variants, and the range of measured latencies (paper: "
        "Table 2). Kernel sizes drawn as the paper's text says cost 3.7 times a 3 x 3 kernel on average, so that families "
        "built on these exceed its averages, of which GoogleNets' and DenseNets' lie below the published base models. Base "
        "models are tested against published multiply-adds and parameters, but for two: of ProxylessNAS for a CPU the "
        "authors give no multiply-adds (pytorchcv lists 460 M operations, by a count that exceeds the authors' on their "
        "other networks, too; the builder is tested on one of those), and of the ResNet cell of NASBench201 neither is "
        "published (it is tested by its place between the least and the largest cell, which are).",
        prediction.table_02,
        ("zoo",),
    ),
    Shown(
        "table_03",
        "A fusion test: pool, relu",
        "Measured times in us; fused if the pair saves more than alpha times the cheaper operator (paper: Table 3, inequation "
        "1). On small tensors fusing saves the dispatch of a node, on a large one a map that is not written and read again; "
        "the large one is asked where the small ones are unclear.",
        fusion.table_03,
        ("test_cases",),
    ),
    Shown(
        "table_04",
        "Kernels of ResNet18",
        "Kernels found with the rules detected on this device, beside those of the paper's backends (paper: Table 4).",
        fusion.table_04,
        ("resnet18_kernels",),
    ),
    Shown(
        "table_05",
        "Sample space of Conv",
        "Values that the prior models span; configurations is the product over the dimensions (paper: Table 5).",
        sampling.table_05,
        ("prior",),
    ),
    Shown(
        "table_06",
        "Kernels, features and measured rows",
        "Labelled rows that the predictors learn from: those of the adaptive sampler, of both random ones, of the networks "
        "of the prior, and of carriers with convolutions or kinds that these lack (paper: Table 6). Squeeze-and-excite is "
        "one kernel in the paper and splits into pooling, convolutions and a product here; its channel shuffle is the "
        "transpose.",
        sampling.table_06,
        ("kernels",),
    ),
    Shown("table_07", "Devices", "The measured device and the paper's (paper: Table 7).", sampling.table_07, ("environment",)),
    Shown(
        "table_08",
        "Whole-model prediction by family",
        "Evaluated variants only: no predictor or calibration saw them. Predictions are sums over kernels, each times the "
        "factor of its kind (`table_factors`; plain sums stand in `table_baselines`). The paper prints no overall RMSE, RMSPE "
        "or +-5 % (paper: Table 8; overall +-10 %: section 7.2.2).",
        prediction.table_08,
        ("models",),
        ("predicted_ms",),
    ),
    Shown(
        "table_09",
        "Kernel predictors",
        "Held-out kernels: `test` is the 7:1:2 split, `frozen` the set that the sampler never chose from. All labels of a set, "
        "also the shortest, but for the column that says so. LightGBM against the paper's method, a random forest, on the same "
        "rows (paper: Table 9). Squeeze-and-excite (`se`) is one kernel in the paper and several here.",
        sampling.table_09,
        ("quality",),
    ),
    Shown(
        "table_10",
        "Adaptive sampling against random sampling",
        "Conv predictors of what each sampler measured within the same budget, tested on all labels of the frozen set, and on "
        "those of at least `training.resolved_us` alone, since the counters of stock engines have the unit of a microsecond; "
        "then whole models, with that Conv predictor in place of the device's, which learns from all of them (paper: Table 10 "
        "and section 7.3). `over adaptive` is the 95 % interval of a sampler's RMSPE less the adaptive one's (paired "
        "bootstrap over the carriers of the set): above zero throughout, the adaptive one is ahead beyond the chance of which "
        "carriers were tested, of one run and one training each. "
        "The prior sampler starts from the initial sample of the adaptive one; here its minutes count for both, in the table "
        "of measuring costs once.",
        sampling.table_10,
        ("samplers",),
    ),
    Shown(
        "table_11",
        "Predictors of another device",
        "Models measured on this device, predicted by the other device's predictors and by rebuilt ones (paper: Table 11, "
        "Adreno 640 on 630).",
        prediction.table_11,
        ("transfer",),
    ),
    Shown(
        "table_12",
        "Measuring cost",
        "Wall-clock minutes with model building, references and rejected batches (paper: Table 12, 2.5, 1 and 4.4 days). "
        "`prior` is what it measured beyond the initial sample that it shares with `adaptive`. `excess` is what the samplers "
        "measured beyond their budgets, as batches are measured whole: it is discarded, and no predictor learns from it. "
        "`further` are kinds that no family has, `beyond` large, grouped and dilated convolutions. `calibration` are the "
        "whole models that set the factors of kinds and the size of the intervals.",
        sampling.table_12,
        ("sampling", "calibration"),
    ),
    Shown(
        "table_fusion",
        "Fusion rules against the engine's own report",
        "The unit is an edge of the original graph whose ends the engine runs in one node; macro average over (type pair, "
        "connection), without and with edges at reshapes, which move no data; batch-norm folding is counted apart. Pairs that "
        "neither side fuses are left out here.",
        fusion.table_fusion,
        ("verification",),
        note=fusion.undecided_note,
    ),
    Shown(
        "table_undecided",
        "Fusion tests left undecided",
        "What is saved (margin) and its standard error (noise), over the time of the cheaper operator; fused means that the "
        "margin is clearly above alpha. The rules take these pairs as not fused, but relu as relu6 and chains as their pair.",
        fusion.table_undecided,
        ("test_cases",),
        note=fusion.undecided_note,
    ),
    Shown(
        "table_skipped",
        "Pairs not tested",
        "Ordered pairs of kinds that no fusion test covers; the rules take them as not fused, but for the reshapes of a "
        "channel shuffle, which is tested as one chain. Pairs that the zoo holds, base models and evaluated variants, stand "
        "one by one: edges that the engine fuses by its own report and the rules do not are what is lost. Of multi-outbound "
        "connections one is tested for each kind whose kernels could hand out an inner tensor (conv, dwconv, bn, add, mul), "
        "with an activation: what it shows holds for every reader of that kind, and other kinds count as not fused.",
        fusion.table_skipped,
        ("skipped_pairs",),
    ),
    Shown(
        "table_baselines",
        "Baselines on unseen families",
        "The random forest is the paper's method: one a kernel kind on its features alone, trained on the rows that ours learn "
        "from. FLOPs and FLOPs+MAC are linear regressions over the other families (paper: section 7.2.1). `family left out` is "
        "ours with factors of kinds from the calibrating models of the other families alone; the operator sum has those of "
        "all. The paper's row: means over its five families and three devices (Fig. 9); its operator sum is that of the CPU "
        "over all families (Fig. 11).",
        baselines.table_baselines,
        ("models",),
        ("predicted_ms", "macs", "memory_bytes"),
    ),
    Shown(
        "table_baseline_differences",
        "Baselines against ours, family by family",
        "RMSPE of a baseline less ours in points (below zero the baseline is ahead), with the 95 % interval of a paired "
        "bootstrap over the family's models; of twenty models it is somewhat narrow. p is how often so large a difference of "
        "squared errors comes about when a coin decides for each model which of the two errors is whose; below .05 the two "
        "count as told apart. p is not corrected for the number of comparisons, and is of one training and one measurement: "
        "it tells of the chance of which models were drawn, of no other.",
        baselines.table_baseline_differences,
        ("models",),
        ("predicted_ms", "macs", "memory_bytes"),
    ),
    Shown(
        "table_modes",
        "Measuring modes",
        "Whole-model accuracy of predictors trained on labels of each mode, cut at the same measuring time; of isolated "
        "kernels it includes that of the boundary cost.",
        sampling.table_modes,
        ("modes",),
    ),
    Shown(
        "table_repeat",
        "Repeatability ceiling",
        "The same models measured again later, held against their first measurement as if it were a prediction: no predictor "
        "can be expected to do better. The longer the time between the two, the more the machine may drift: ceilings of "
        "different gaps, such as those of two devices, are not comparable.",
        prediction.table_repeat,
        ("models",),
        ("repeat_ms", "repeat_gap_s", "predicted_ms"),
    ),
    Shown(
        "table_truth",
        "How whole models were measured",
        "Time from the first to the last block of one model's first measurement, whose median over blocks is the truth; where "
        "it is short, the blocks meet the machine in the same state and say less about its drift. Noise is half the range of "
        "the middle blocks over the latency.",
        prediction.table_truth,
        ("models",),
        ("blocks_span_s", "noise"),
    ),
    Shown(
        "table_factors",
        "Factors of kernel kinds",
        "What kernels take in whole models over what carriers said of them, fitted on the whole models of the stage "
        "calibration, none of which is evaluated, with a prior around 1: kinds of little time stay there. The paper adds up "
        "kernels as they are; so do the plain sums of `table_baselines`.",
        prediction.table_factors,
        ("factors", "breakdown"),
    ),
    Shown(
        "table_intervals",
        "Intervals at 90 % nominal",
        "Share of measured latencies inside the predicted interval, and the interval's median width. How the width follows the "
        "number of kernels is fitted on held-out carriers; where they show no such dependence, all widths are alike.",
        prediction.table_intervals,
        ("models", "calibration"),
        ("predicted_ms", "low_ms", "high_ms"),
        note=prediction.calibration_note,
    ),
    Shown(
        "table_seen",
        "Configurations seen in training",
        "Share of the evaluated, distinct kernel configurations that the training rows hold (paper: section 7.2.1).",
        sampling.table_seen,
        ("evaluated_kernels", "kernels"),
    ),
    Shown(
        "table_conv_fusion",
        "Does Conv cost what Conv++bn++relu does?",
        "Latency over the plain Conv of the same configuration (paper: section 6, 0.404, 0.404 and 0.405 ms on the GPU).",
        fusion.table_conv_fusion,
        ("conv_fusion",),
    ),
)

#: Every table by id, in the order of the report.
TABLES: Mapping[str, Shown] = MappingProxyType({table.id: table for table in _ALL})
