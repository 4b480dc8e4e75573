"""Write the figures of README.md and docs/results.md again from results/: `make results-page`.

A generated part stands between `<!-- begin: NAME -->` and `<!-- end -->`; text around it is left as it
is. Nothing is measured, and a test holds the committed files to what this script writes.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from edgeplan.chapters.cold_start.evaluation.metrics import BARS as COLD_BARS
from edgeplan.chapters.memory.evaluation.metrics import BARS as MEMORY_BARS
from edgeplan.chapters.partition.eop.metrics import BARS as EOP_BARS
from edgeplan.chapters.partition.evaluation.metrics import BARS as PARTITION_BARS
from edgeplan.chapters.prediction.evaluation.metrics import bars as prediction_bars
from edgeplan.reporting.bars import MISS, UNDECIDED, Bar, value_of
from edgeplan.support.files import write_text

PAGES = ("README.md", "docs/results.md")
_PART = re.compile(r"(<!-- begin: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SHARES = ("prediction.", "fusion.", "interval.", "sampling.", "measuring.noise")
#: Columns of `table_baselines` that are held against each other.
_PREDICTORS = ("ours", "operator sum", "FLOPs+MAC")
#: Figures of the first chapter that have no bar.
_FURTHER = (
    Bar("prediction.repeat_within_10pct", "the same models measured twice, within 10 %"),
    Bar("prediction.repeat_within_5pct", "the same models measured twice, within 5 %"),
    Bar("prediction.left_out_within_10pct", "within 10 %, the model's family left out of the factors"),
    Bar("prediction.left_out_within_5pct", "within 5 %, the model's family left out of the factors"),
    Bar("interval.width_90", "median width of the 90 % interval, of the prediction"),
    Bar("measuring.noise_median", "noise of whole models, median"),
    Bar("sampling.adaptive_error", "conv RMSPE, adaptive sampling (labels of 1 us and more)"),
    Bar("sampling.prior_error", "conv RMSPE, the prior alone"),
    Bar("sampling.random_error", "conv RMSPE, uniform sampling"),
)
_COLD_FURTHER = (
    Bar("runtime.warm_vs_best_stock_optimal", "warm latency of the default plan over the best stock engine's"),
    Bar("cold.over_warm_cached", "cold over warm of the plan `warm`, page cache warm"),
    Bar("cold.predicted_within_15pct_both_states", "share of makespans within 15 %, both states"),
)


class Results:
    """What is committed below results/: figures of merit and tables of each device."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        found = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/metrics.json"))}
        first = yaml.safe_load((folder.parent / "params.yaml").read_text())["devices"]
        order = [name for name in dict.fromkeys([*first, *found]) if name in found]
        self.metrics: Mapping[str, Mapping[str, float]] = {name: found[name] for name in order}

    def having(self, key: str) -> list[str]:
        """The devices that have a figure."""
        return [device for device, values in self.metrics.items() if key in values]

    def table(self, device: str, name: str) -> list[dict[str, str]]:
        """A table of a device, wherever below its folder it lies."""
        with self._only(device, f"{name}.csv").open(newline="") as lines:
            return list(csv.DictReader(lines))

    def document(self, device: str, name: str) -> Any:
        """A JSON document of a device."""
        return json.loads(self._only(device, name).read_text())

    def environments(self, target: str) -> Mapping[str, Any]:
        """Where the rows of the chapters on memory and partitions were measured, by stage."""
        found = {name: self._folder / target / name / "environment.json" for name in ("memory", "partition", "partition/eop")}
        return {name: json.loads(path.read_text()) for name, path in found.items() if path.is_file()}

    def _only(self, device: str, name: str) -> Path:
        (path,) = sorted((self._folder / device).rglob(name), key=lambda path: len(path.parts))[:1]
        return path


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1) -> str:
    """A Markdown table: the first `text` columns to the left, figures to the right."""
    rule = ["---" if i < text else "---:" for i in range(len(header))]
    return "".join(f"| {' | '.join(row)} |\n" for row in [header, rule, *rows])


def _number(value: float, *, share: bool = False) -> str:
    return f"{100 * value:.1f} %" if share else f"{value:.3g}"


def headline(results: Results) -> str:
    """One row a chapter that has results: what it measured beside its paper."""
    rows = []
    if devices := results.having("prediction.within_10pct"):
        shares = ", ".join(f"{100 * results.metrics[name]['prediction.within_10pct']:.1f} % (`{name}`)" for name in devices)
        paper = results.table(devices[0], "table_08")[-1]
        printed = ", ".join(f"{paper[f'paper {name}: within 10 % (%)']} % ({name})" for name in ("CPU", "GPU", "VPU"))
        rows.append(("[Latency prediction](docs/prediction.md), nn-Meter", "models predicted within 10 %", shares, printed))
    for device in results.having("cold.speedup_vs_best_stock_evicted"):
        ours = next(
            r for r in results.table(device, "cold_table_05") if (r["baseline"], r["page_cache"]) == ("ncnn", "evicted")
        )
        over = f"{float(ours['geomean']):.2f} x (`{device}`, {ours['models']} models)"
        means = sorted(float(mean) for mean in re.findall(r"\(([\d.]+)\)", ours["paper_min_max_avg"]))
        printed = f"{means[0]:.1f} to {means[-1]:.1f} x (4 phones)"
        rows.append(("[Cold start](docs/cold-start.md), NNV12", "first inference, speed-up over ncnn", over, printed))
        best = f"{results.metrics[device]['cold.speedup_vs_best_stock_evicted']:.2f} x"
        rows.append(("", "... over the best of all stock settings", best, "not given"))
    for device in results.having("memory.resnet152_reduction"):
        row = next(r for r in results.table(device, "memory_least") if r["model"] == "resnet152")
        peak, stock = (f"{float(row[key]):.1f} MiB" for key in ("peak_mib", "stock_mib"))
        printed = f"{100 * float(row['paper_reduction']):.1f} % less than NCNN"
        rows.append(
            (
                "[Memory](docs/memory.md), FlexNN",
                "least memory that runs ResNet-152",
                f"{peak} of ONNX Runtime's {stock}, {100 * float(row['reduction']):.1f} % less (`{device}`)",
                printed,
            )
        )
    for pair in results.having("partition.oracle_gain_share"):
        share = f"{100 * results.metrics[pair]['partition.oracle_gain_share']:.1f} % (`{pair}`)"
        figure = "share of the best split's gain, by prediction"
        rows.append(("[Partition](docs/partition.md), LiPG", figure, share, "84 % (4 phones)"))
    for pair in results.having("eop.ours_over_eop"):
        ratio = f"{results.metrics[pair]['eop.ours_over_eop']:.2f} of EOP's time (`{pair}`)"
        rows.append(("... and EOP", "our plan over EOP's, both measured", ratio, "not measured there"))
    return _table(("chapter", "figure", "measured", "paper"), rows, text=4)


def prediction(results: Results) -> str:
    """The figures of merit of the first chapter, all devices beside each other; what misses its bar is bold."""
    devices = results.having("prediction.within_10pct")
    own = {device: {bar.key: bar for bar in prediction_bars(device)} for device in devices}
    rows = []
    for bar in (*prediction_bars(""), *_FURTHER):

        def number(value: float, key: str = bar.key) -> str:
            return _number(value, share=key.startswith(_SHARES) and key != "prediction.models")

        values = [_held(results.metrics[device], own[device].get(bar.key, bar), number) for device in devices]
        limits = {device: own[device].get(bar.key, bar).limits(number) for device in devices}
        others = [f"{device}: {text}" for device, text in limits.items() if text != bar.limits(number)]
        rows.append((bar.title, *values, bar.limits(number) + (f" ({', '.join(others)})" if others else ""), bar.aim))
    return _table(("figure", *devices, "bar", "aim"), rows)


def _held(metrics: Mapping[str, float], bar: Bar, number: Callable[[float], str]) -> str:
    """A figure as a cell: bold where it misses its bar or has no value, with a word where its interval holds the bar."""
    limits = bar.limits(number)
    if not limits and value_of(metrics, bar.key) is None:
        return ""
    text = bar.told(metrics, number)
    verdict = bar.verdict(metrics)
    return f"**{text}**" if verdict == MISS and limits else f"{text}, undecided" if verdict == UNDECIDED else text


def families(results: Results) -> str:
    """Models within 10 % by family: ours, the sum over operators, the regression on FLOPs and memory traffic."""
    devices = results.having("prediction.within_10pct")
    tables = {device: results.table(device, "table_baselines") for device in devices}
    paper = {row["family"]: row["paper CPU: within 10 % (%)"] for row in results.table(devices[0], "table_08")}
    rows = []
    for i, first in enumerate(tables[devices[0]]):
        if first["family"] in paper:
            cells = [" / ".join(f"{float(tables[d][i][f'{c}: within 10 % (%)']):.0f}" for c in _PREDICTORS) for d in devices]
            rows.append([first["family"], *cells, paper[first["family"]]])
    return _table(["family", *devices, "paper CPU"], rows)


def figures(having: str, bars: Sequence[Bar]) -> Callable[[Results], str]:
    """The figures of merit of a chapter, for all that have one of them."""

    def part(results: Results) -> str:
        targets = results.having(having)
        rows = [
            (bar.title, *(_held(results.metrics[t], bar, _number) for t in targets), bar.limits(_number), bar.aim)
            for bar in bars
        ]
        return _table(("figure", *targets, "bar", "aim"), rows)

    return part


def engines(results: Results) -> str:
    """Speed-ups of the first inference over each stock setting, both states of the page cache."""
    parts = []
    for device in results.having("cold.speedup_vs_best_stock_evicted"):
        states: dict[str, dict[str, dict[str, str]]] = {}
        for row in results.table(device, "cold_table_05"):
            states.setdefault(row["baseline"], {})[row["page_cache"]] = row
        rows = [
            [name, *(f"{float(found[state]['geomean']):.2f} ({_range(found[state])})" for state in ("cached", "evicted"))]
            for name, found in states.items()
        ]
        header = (f"`{device}` over", "page cache warm: mean (range)", "evicted: mean (range)")
        parts.append(_table(header, rows))
    return "\n".join(parts)


def _range(row: Mapping[str, str]) -> str:
    return f"{float(row['least']):.2f} to {float(row['largest']):.2f}"


def measured(results: Results) -> str:
    """Where and when the rows were measured, by which commits."""
    rows = []
    for device in results.having("prediction.within_10pct"):
        about = results.document(device, "environment.json")
        cpu = f"{about['cpu']} ({about['cpu_family_model']}), {about['cores']} cores" + (", virtual" * about["virtualised"])
        for stage, when in results.document(device, "dates.json").items():
            commits = ", ".join(f"`{name}`" for name in about["commits"]) if stage == "truth" else ""
            rows.append((device, f"{about['engine']} {about['engine_version'].split('-')[0]}", cpu, stage, when, commits))
        if device in results.having("cold.models"):
            row = results.table(device, "cold_table_05")[0]
            rows.append((device, about["engine"], cpu, "cold_start", row["measured_at"], ""))
    for target in results.metrics:
        for stage, about in results.environments(target).items():
            cpu = f"{about['cpu']} ({about['cpu_family_model']}), {about['cores']} cores" + (", virtual" * about["virtualised"])
            rows.append((target, "edgeplan", cpu, stage, about["measured_at"], ""))
    return _table(("device", "engine", "machine", "stage", "measured", "commit"), rows, text=6)


def findings(results: Results) -> str:
    """What the evaluation finds in the rows of each device, as in its report."""
    parts = []
    for device in results.having("prediction.within_10pct"):
        lines = "".join(f"* {line}\n" for line in results.document(device, "findings.json"))
        parts.append(f"### {device}\n\n{lines}")
    return "\n".join(parts)


PARTS: Mapping[str, Callable[[Results], str]] = {
    "headline": headline,
    "prediction": prediction,
    "families": families,
    "cold-start": figures("cold.speedup_vs_best_stock_evicted", (*COLD_BARS, *_COLD_FURTHER)),
    "engines": engines,
    "memory": figures("memory.peak_over_budget_max", MEMORY_BARS),
    "partition": figures("partition.oracle_gain_share", PARTITION_BARS),
    "eop": figures("eop.outputs_equal", EOP_BARS),
    "measured": measured,
    "findings": findings,
}


def rendered(text: str, results: Results) -> str:
    """A page with its generated parts written again."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]](results).rstrip()}\n\n{part[3]}", text)


def main(root: Path) -> None:
    """Write all pages of a checkout; say which of them changed."""
    results = Results(root / "results")
    for name in PAGES:
        path = root / name
        before = path.read_text()
        after = rendered(before, results)
        if after != before:
            write_text(path, after)
        sys.stdout.write(f"{name}: {'written' if after != before else 'current'}\n")


if __name__ == "__main__":
    main(Path(__file__).parents[2])
