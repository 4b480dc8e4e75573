"""Write the figures of README.md and docs/results.md again from results/: `make results-page`.

A generated part stands between `<!-- begin: NAME -->` and `<!-- end -->`; text around it is left as it
is. Nothing is measured, and a test holds the committed files to what this script writes.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from edgeplan.chapters.cold_start.evaluation.metrics import BARS as COLD_BARS
from edgeplan.chapters.memory.evaluation.metrics import BARS as MEMORY_BARS
from edgeplan.chapters.memory.evaluation.metrics import FIRST as MEMORY_FIRST
from edgeplan.chapters.partition.eop.metrics import BARS as EOP_BARS
from edgeplan.chapters.partition.evaluation.metrics import BARS as PARTITION_BARS
from edgeplan.chapters.partition.evaluation.metrics import FURTHER as PARTITION_FURTHER
from edgeplan.chapters.prediction.evaluation.metrics import bars as prediction_bars
from edgeplan.reporting.bars import MISS, UNDECIDED, Bar, interval_keys, value_of
from edgeplan.support.files import write_text

PAGES = ("README.md", "docs/results.md")
_PART = re.compile(r"(<!-- begin: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
#: Column of `memory_frugal`: the limit that the headline is of.
_HELD, _USUAL_READ_AHEAD_KIB = "idle + 45 MiB", 128
_SHARES = ("prediction.", "fusion.", "interval.", "sampling.", "measuring.noise")
#: Figures of the first chapter that have no bar.
_REPEATED = (
    Bar("prediction.repeat_within_10pct", "the same models measured twice, within 10 %"),
    Bar("prediction.repeat_within_5pct", "the same models measured twice, within 5 %"),
)
_FURTHER = (
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
    """Results are the committed files below results/: figures of merit and tables of each device."""

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
        found = {
            name: self._folder / target / name / "environment.json"
            for name in ("memory", "partition", "partition/checked", "partition/eop")
        }
        return {name: json.loads(path.read_text()) for name, path in found.items() if path.is_file()}

    def _only(self, device: str, name: str) -> Path:
        (path,) = sorted((self._folder / device).rglob(name), key=lambda path: len(path.parts))[:1]
        return path


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1) -> str:
    """A Markdown table: the first `text` columns to the left, figures to the right."""
    rule = ["---" if i < text else "---:" for i in range(len(header))]
    return "".join(f"| {' | '.join(row)} |\n" for row in [header, rule, *rows])


def _number(value: float, *, share: bool = False) -> str:
    """A figure as the report shows it: a share is rounded down, so that what is not all does not read 100."""
    return f"{math.floor(1000 * value + 1e-6) / 10:.1f} %" if share else f"{value:.3g}"


def headline(results: Results) -> str:
    """Write what an engineer asks first of each chapter that has results, the answer first, beside its paper."""
    rows: list[tuple[str, ...]] = []
    for part in (_first_prediction, _first_cold, _first_memory, _first_partition):
        rows += part(results)
    return _table(("chapter", "figure", "measured", "paper"), rows, text=4)


def _mean(metrics: Mapping[str, float], key: str) -> str:
    """A ratio with its interval."""
    low, high = (metrics.get(end) for end in interval_keys(key))
    return f"{metrics[key]:.2f} x" + (f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else "")


def _first_prediction(results: Results) -> list[tuple[str, ...]]:
    devices = results.having("prediction.within_10pct")
    if not devices:
        return []

    def shares(key: str) -> str:
        having = [name for name in devices if key in results.metrics[name]]
        return ", ".join(f"{_number(results.metrics[name][key], share=True)} (`{name}`)" for name in having)

    paper = results.table(devices[0], "table_08")[-1]
    printed = ", ".join(f"{paper[f'paper {name}: within 10 % (%)']} % ({name})" for name in ("CPU", "GPU", "VPU"))
    predicted, again = shares("prediction.within_10pct"), shares("prediction.repeat_within_10pct")
    return [
        ("[Latency prediction](docs/prediction.md), nn-Meter", "models predicted within 10 %", predicted, printed),
        ("", "... the same models measured twice, within 10 %", again, "not given"),
    ]


def _first_cold(results: Results) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for device in results.having("cold.speedup_vs_best_stock_evicted"):
        own = results.metrics[device]
        over = {r["page_cache"]: r for r in results.table(device, "cold_table_05") if r["baseline"] == "ncnn"}["evicted"]
        best = ", ".join(
            f"{_mean(own, f'cold.speedup_vs_best_stock_{state}')} {text}"
            for state, text in (("cached", "with the page cache warm"), ("evicted", "evicted"))
            if f"cold.speedup_vs_best_stock_{state}" in own
        )
        means = sorted(float(mean) for mean in re.findall(r"\(([\d.]+)\)", over["paper_min_max_avg"]))
        printed = f"{means[0]:.1f} to {means[-1]:.1f} x (4 phones)"
        first = "first inference, speed-up over the best stock setting of each model"
        rows.append(("[Cold start](docs/cold-start.md), NNV12", first, f"{best} (`{device}`)", "not given"))
        ncnn = f"{float(over['geomean']):.2f} x ({over['models']} models)"
        rows.append(("", "... over ncnn, page cache evicted", ncnn, printed))
    return rows


def _first_memory(results: Results) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for device in results.having("memory.resnet152_reduction"):
        ways = {r["way"]: r for r in results.table(device, "memory_beside") if r["model"] == "resnet152"}
        least, stock = ways["edgeplan, least"], ways["onnxruntime"]
        granted, peak, wanted = (f"{float(mib):.1f}" for mib in (least["limit_mib"], least["peak_mib"], stock["peak_mib"]))
        times = f"{float(least['median_ms']):.0f} against {float(stock['median_ms']):.0f} ms"
        over = float(least["time over onnxruntime"])
        saved = 100 * results.metrics[device]["memory.resnet152_reduction"]
        printed = float(next(r for r in results.table(device, "memory_least") if r["model"] == "resnet152")["paper_reduction"])
        rows += [
            (
                "[Memory](docs/memory.md), FlexNN",
                "ResNet-152 at its least memory, time over ONNX Runtime's with all it wants",
                f"{over:.2f} x, {times} (`{device}`)",
                "1.04 x of NCNN's",
            ),
            (
                "",
                "... and that memory, MiB over the idle process",
                f"{granted} granted, {peak} taken, of {wanted}: {saved:.1f} % less taken",
                f"{100 * printed:.1f} % less than NCNN",
            ),
        ]
        held: dict[int, list[str]] = {}  # by KiB that the system reads ahead
        for row in results.table(device, "memory_frugal"):
            ms, ran, _ = row[_HELD].partition(" ms")
            if row["model"] == "resnet152" and ran:
                held.setdefault(int(row["read_ahead_kib"]), []).append(f"{float(ms):.0f} ms ({row['setting']})")
        for kib in sorted(held):
            whose = "Linux's default" if kib == _USUAL_READ_AHEAD_KIB else "this machine's"
            what = f"... held to {_HELD} by the system, which reads {kib:,} KiB ahead ({whose})"
            rows.append(("", what, ", ".join(held[kib]), "not held"))
        if (killed := results.metrics[device].get("memory.cgroup_killed")) is not None:
            rows.append(("", "... plans that the system killed when held to their budget", f"{killed:.0f}", "not held"))
    return rows


def _first_partition(results: Results) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    if pairs := results.having("partition.speedup_over_best"):
        key, what = "partition.speedup_over_best", "speed-up over the best of CPU, GPU, oneDNN and stock engines on all cores"
        told = ", ".join(f"{_mean(results.metrics[pair], key)} (`{pair}`)" for pair in pairs)
        rows.append(("[Partition](docs/partition.md), checked plans", what, told, "not given"))
    for pair in results.having("partition.speedup_vs_best"):
        own = results.metrics[pair]
        what = "our plan's speed-up over the best of CPU, GPU, oneDNN and stock engines on all cores"
        rows += [
            (
                "... and LiPG",
                what,
                f"{_mean(own, 'partition.speedup_vs_best')} (`{pair}`)",
                "not given",
            ),
            (
                "",
                "... over the better processor alone",
                _mean(own, "partition.speedup_vs_best_single_all"),
                "1.36 x (over the GPU)",
            ),
        ]
    for pair in results.having("eop.speedup_vs_best"):
        what = "our plan's speed-up over the best of CPU, GPU, oneDNN on all cores"
        told = f"{_mean(results.metrics[pair], 'eop.speedup_vs_best')} (`{pair}`)"
        rows.append(("... and EOP", what, told, "estimated, not measured"))
    return rows


def prediction(results: Results) -> str:
    """The figures of merit of the first chapter, all devices beside each other; what misses its bar is bold."""
    devices = results.having("prediction.within_10pct")
    own = {device: {bar.key: bar for bar in prediction_bars(device)} for device in devices}
    rows = []
    held = prediction_bars("")
    for bar in (held[0], _REPEATED[0], held[1], _REPEATED[1], *held[2:], *_FURTHER):

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


def checked(results: Results) -> str:
    """Write what the pages of checked plans hold against bars, and their cards without one, all pairs beside each other."""
    pairs = results.having("partition.speedup_over_best")
    rows: dict[str, dict[str, tuple[str, str, str]]] = {}
    for pair in pairs:
        page = results.document("chapters", f"{pair}/partition_checked.page.json")
        for line in page["lines"]:
            bold = f"**{line['value']}**" if line["verdict"] == MISS else line["value"]
            value = f"{bold}, undecided" if line["verdict"] == UNDECIDED else bold
            rows.setdefault(line["title"], {})[pair] = value, line["bar"], line["aim"]
        for card in (card for card in page["cards"] if not card["verdict"]):
            ends = f" ({card['interval']})" if card["interval"] else ""
            rows.setdefault(f"{card['title']}, mean", {})[pair] = f"{card['value'].partition(' ')[0]}{ends}", "", ""
    told = []
    for title, by_pair in rows.items():
        values, limits, aims = zip(*(by_pair.get(pair, ("", "", "")) for pair in pairs), strict=True)
        asked = [pair for pair, limit in zip(pairs, limits, strict=True) if limit]
        of = f" ({', '.join(asked)})" if asked and asked != pairs else ""
        told.append((title, *values, max(limits) + of, max(aims)))
    return _table(("figure", *pairs, "bar", "aim"), told)


def measured(results: Results) -> str:
    """Where and when the rows were measured, by which commits."""
    rows = []
    for device in results.having("prediction.within_10pct"):
        about = results.document(device, "environment.json")
        cpu = f"{about['cpu']} ({about['cpu_family_model']}), {about['cores']} cores" + (", virtual" * about["virtualised"])
        commits = ", ".join(f"`{name}`" for name in about["commits"])
        engine = f"{about['engine']} {about['engine_version'].split('-')[0]}"
        rows.append((device, engine, cpu, "truth", about["measured_at"], commits))
        if device in results.having("cold.models"):
            row = results.table(device, "cold_table_05")[0]
            rows.append((device, about["engine"], cpu, "cold_start", row["measured_at"], ""))
    for target in results.metrics:
        for stage, about in results.environments(target).items():
            cpu = f"{about['cpu']} ({about['cpu_family_model']}), {about['cores']} cores" + (", virtual" * about["virtualised"])
            rows.append((target, "edgeplan", cpu, stage, about["measured_at"], ""))
    return _table(("device", "engine", "machine", "stage", "measured", "commit"), rows, text=6)


PARTS: Mapping[str, Callable[[Results], str]] = {
    "headline": headline,
    "prediction": prediction,
    "cold-start": figures("cold.speedup_vs_best_stock_evicted", (*COLD_BARS, *_COLD_FURTHER)),
    "memory": figures("memory.peak_over_budget_max", (*MEMORY_FIRST, *MEMORY_BARS)),
    "partition-checked": checked,
    "partition": figures("partition.oracle_gain_share", (PARTITION_BARS[0], *PARTITION_FURTHER, *PARTITION_BARS[1:])),
    "eop": figures("eop.outputs_equal", EOP_BARS),
    "measured": measured,
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
