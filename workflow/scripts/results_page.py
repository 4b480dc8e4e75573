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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from edgeplan.chapters.cold_start.evaluation.metrics import BARS as COLD_BARS
from edgeplan.chapters.memory.evaluation.page import BARS as MEMORY_BARS
from edgeplan.chapters.memory.evaluation.page import FIRST as MEMORY_FIRST
from edgeplan.chapters.partition.evaluation.checked_page import ASKED
from edgeplan.chapters.partition.evaluation.eop_page import BARS as EOP_BARS
from edgeplan.chapters.partition.evaluation.page import BARS as PARTITION_BARS
from edgeplan.chapters.partition.evaluation.page import FURTHER as PARTITION_FURTHER
from edgeplan.chapters.prediction.evaluation.page import bars as prediction_bars
from edgeplan.reporting.bars import MISS, UNDECIDED, Bar, value_of
from edgeplan.support.files import write_text

PAGES = ("README.md", "docs/results.md")
_PART = re.compile(r"(<!-- begin: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
#: Column of `memory_frugal`: the limit that the headline is of.
_HELD, _USUAL_READ_AHEAD_KIB = "idle + 45 MiB", 128
_SHARES = ("prediction.", "fusion.", "interval.")
_PREDICTION = prediction_bars("")
#: Figures that have no bar.
_REPEATED = Bar("prediction.repeat_within_10pct", "the same models measured twice, within 10 %")
_FURTHER = (
    Bar("prediction.left_out_within_10pct", "within 10 %, the model's family left out of the factors"),
    Bar("interval.width_90", "median width of the 90 % interval, of the prediction"),
)
_COLD_FURTHER = Bar("cold.over_warm_cached", "cold over warm of the plan `warm`, page cache warm")
_CHECKED_FURTHER = Bar("partition.most_gain", "most that both could gain over the best alone, mean")
#: Chapters by the name of their page, in the order of the first table.
_CHAPTERS = {
    "prediction": "[Latency prediction](docs/prediction.md), nn-Meter",
    "cold_start": "[Cold start](docs/cold-start.md), NNV12",
    "memory": "[Memory](docs/memory.md), FlexNN",
    "partition_checked": "[Partition](docs/partition.md), checked plans",
    "partition": "... and LiPG",
    "partition_eop": "... and EOP",
}


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

    def pages(self, name: str) -> dict[str, Any]:
        """The pages of a chapter, by target."""
        found = {target: self._folder / "chapters" / target / f"{name}.page.json" for target in self.metrics}
        return {target: json.loads(path.read_text()) for target, path in found.items() if path.is_file()}

    def table(self, device: str, name: str) -> list[dict[str, str]]:
        """A table of a device, wherever below its folder it lies."""
        path = min((self._folder / device).rglob(f"{name}.csv"), key=lambda path: (len(path.parts), path))
        with path.open(newline="") as lines:
            return list(csv.DictReader(lines))

    def environments(self, target: str) -> Mapping[str, Any]:
        """Where the rows of the chapters were measured, by stage."""
        folders = {"truth": "evaluation", "cold_start": "cold"}
        folders |= {name: name for name in ("cold_gpu", "memory", "partition", "partition/checked", "partition/eop")}
        found = {stage: self._folder / target / name / "environment.json" for stage, name in folders.items()}
        return {name: json.loads(path.read_text()) for name, path in found.items() if path.is_file()}


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1) -> str:
    """A Markdown table: the first `text` columns to the left, figures to the right."""
    rule = ["---" if i < text else "---:" for i in range(len(header))]
    return "".join(f"| {' | '.join(row)} |\n" for row in [header, rule, *rows])


def _number(value: float, *, share: bool = False) -> str:
    """A figure as the report shows it: a share is rounded down, so that what is not all does not read 100."""
    return f"{math.floor(1000 * value + 1e-6) / 10:.1f} %" if share else f"{value:.3g}"


def headline(results: Results) -> str:
    """Write what came out of each chapter, the sentences of the report's first screen, beside its paper."""
    rows: list[tuple[str, ...]] = []
    for name, chapter in _CHAPTERS.items():
        told = [*_sentences(results, name), *(_beside[name](results) if name in _beside else ())]
        rows += [("" if k else chapter, *row) for k, row in enumerate(told)]
    return _table(("chapter", "what came out", "paper"), rows, text=3)


def _sentences(results: Results, name: str) -> list[tuple[str, str]]:
    """The first figure that opens a chapter as a sentence, of further targets the value alone, and what the paper says.

    The second one, too, where the paper says something.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for target, page in results.pages(name).items():
        for card in page["cards"][:1] + [second for second in page["cards"][1:2] if second["paper"]]:
            told = found.setdefault((card["title"], card["paper"]), [])
            value = card["value"] if told else card["title"].replace("{}", card["value"])
            told.append(f"{value} ({card['interval']}{', ' * bool(card['interval'])}`{target}`)")
    return [("; ".join(told), paper) for (_, paper), told in found.items()]


def _over_ncnn(results: Results) -> Iterator[tuple[str, str]]:
    """Speed-up over ncnn, as the paper has it."""
    for device in results.pages("cold_start"):
        over = {r["page_cache"]: r for r in results.table(device, "cold_table_05") if r["baseline"] == "ncnn"}["evicted"]
        means = sorted(float(mean) for mean in re.findall(r"\(([\d.]+)\)", over["paper_min_max_avg"]))
        told = f"starts {float(over['geomean']):.2f} times as fast as ncnn, cache evicted"
        yield f"{told} ({over['models']} models, `{device}`)", f"{means[0]:.1f} to {means[-1]:.1f} (4 phones)"


def _held_by_the_system(results: Results) -> Iterator[tuple[str, str]]:
    """Times of ResNet-152 under one limit."""
    for device in results.having("memory.resnet152_reduction"):
        held: dict[int, list[str]] = {}  # by KiB that the system reads ahead
        for row in results.table(device, "memory_frugal"):
            ms, ran, _ = row[_HELD].partition(" ms")
            if row["model"] == "resnet152" and ran:
                held.setdefault(int(row["read_ahead_kib"]), []).append(f"{float(ms):.0f} ms ({row['setting']})")
        for kib in sorted(held):
            whose = "Linux's default" if kib == _USUAL_READ_AHEAD_KIB else "this machine's"
            told = f"takes {', '.join(held[kib])} where the system holds ResNet-152 to {_HELD}"
            yield f"{told} and reads {kib:,} KiB ahead ({whose})", "not held"


_beside: Mapping[str, Callable[[Results], Iterator[tuple[str, str]]]] = {
    "cold_start": _over_ncnn,
    "memory": _held_by_the_system,
}


def _marked(text: str, verdict: str) -> str:
    """A figure as a cell: bold where it misses its bar or has no value, with a word where its interval holds the bar."""
    return f"**{text}**" if verdict == MISS else f"{text}, undecided" if verdict == UNDECIDED else text


def _held(metrics: Mapping[str, float], bar: Bar, number: Callable[[float], str]) -> str:
    limits = bar.limits(number)
    if not limits and value_of(metrics, bar.key) is None:
        return ""
    text, verdict = bar.told(metrics, number), bar.verdict(metrics)
    return text if verdict == MISS and not limits else _marked(text, verdict)


def figures(having: str, bars: Sequence[Bar], own: Callable[[str], Sequence[Bar]] = lambda _: ()) -> Callable[[Results], str]:
    """The figures of merit of a chapter, for all that have one of them; `own` gives bars that a target has instead."""

    def part(results: Results) -> str:
        targets, rows = results.having(having), []
        instead = {target: {bar.key: bar for bar in own(target)} for target in targets}
        for bar in bars:
            number = partial(_number, share=bar.key.startswith(_SHARES))
            there = {target: instead[target].get(bar.key, bar) for target in targets}
            values = [_held(results.metrics[target], one, number) for target, one in there.items()]
            limits = {target: one.limits(number) for target, one in there.items()}
            others = [f"{target}: {text}" for target, text in limits.items() if text != bar.limits(number)]
            rows.append((bar.title, *values, bar.limits(number) + (f" ({', '.join(others)})" if others else ""), bar.aim))
        return _table(("figure", *targets, "bar", "aim"), rows)

    return part


def checked(results: Results) -> str:
    """Write what the pages of checked plans hold against bars, all pairs beside each other, and the figures of the others."""
    pages = results.pages("partition_checked")
    lines = {pair: {line["title"]: line for line in page["lines"]} for pair, page in pages.items()}
    rows = []
    for bar in (*ASKED, _CHECKED_FURTHER):
        values, asked = [], []
        for pair in pages:
            if line := lines[pair].get(bar.title):
                values.append(_marked(line["value"], line["verdict"]))
                asked.append(pair)
            else:
                values.append(bar.told(results.metrics[pair], _number) if bar.key in results.metrics[pair] else "")
        of = f" ({', '.join(asked)})" if asked and asked != [*pages] else ""
        rows.append((bar.title, *values, bar.limits(_number) + of, bar.aim))
    return _table(("figure", *pages, "bar", "aim"), rows)


def measured(results: Results) -> str:
    """Where and when the rows were measured, by which commits."""
    rows = []
    for target in results.metrics:
        for stage, about in results.environments(target).items():
            cpu = f"{about['cpu']} ({about['cpu_family_model']}), {about['cores']} cores" + (", virtual" * about["virtualised"])
            engine = f"{about['engine']} {about['engine_version'].split('-')[0]}" if "engine" in about else "edgeplan"
            commits = ", ".join(f"`{name}`" for name in about.get("commits", ()))
            rows.append((target, engine, cpu, stage, about["measured_at"], commits))
    return _table(("device", "engine", "machine", "stage", "measured", "commit"), rows, text=6)


PARTS: Mapping[str, Callable[[Results], str]] = {
    "headline": headline,
    "prediction": figures(
        "prediction.within_10pct", (_PREDICTION[0], _REPEATED, *_PREDICTION[1:], *_FURTHER), own=prediction_bars
    ),
    "cold-start": figures("cold.speedup_vs_best_stock_evicted", (*COLD_BARS, _COLD_FURTHER)),
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
