"""Write the JSON schemas of params.yaml, of the lines to a worker and of comparisons from their models: `make schema`."""

from __future__ import annotations

import json
from pathlib import Path

from edgeplan.chapters.params import Params
from edgeplan.comparing.result import schema as schema_of_comparisons
from edgeplan.measurement.board.wire import schema as schema_of_lines
from edgeplan.support.files import write_text

PATH = Path("config/schema/params.schema.json")
WORKER_PATH = Path("config/schema/worker.schema.json")
COMPARISON_PATH = Path("config/schema/comparison.schema.json")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> str:
    """The schema as text; descriptions are the docstrings of the models."""
    found = {"$schema": _DIALECT, **Params.model_json_schema()}
    return json.dumps(found, indent=2, sort_keys=True) + "\n"


def worker_schema() -> str:
    """The schema of the lines as text."""
    return json.dumps({"$schema": _DIALECT, **schema_of_lines()}, indent=2, sort_keys=True) + "\n"


def comparison_schema() -> str:
    """The schema of what `edgeplan compare --json` prints as text."""
    return json.dumps({"$schema": _DIALECT, **schema_of_comparisons()}, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    write_text(PATH, schema())
    write_text(WORKER_PATH, worker_schema())
    write_text(COMPARISON_PATH, comparison_schema())
