"""A fallback for a pair whose inferences take longer than when its plan was checked: the better of its processors alone.

Work beside it slows a pair more than one processor: each hand-over waits for whichever of them was taken. So a pair that has
become slow is held against that one, over some inferences of the caller's, and whichever is faster goes on.
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgeplan.errors import EdgeplanError

#: So many inferences in a row whose median is so many times what it was when the plan was checked are too slow.
WATCHED, SLOW = 7, 1.3
#: Inferences by which one processor is tried, the first of which does not count; those until it is tried again.
TRIED, PATIENCE = 4, 100
#: Runs an inference: its outputs, and the time of its steps (ms) without their copies, as a check of a plan has it.
Timed = Callable[[Mapping[str, Any]], tuple[dict[str, Any], float]]
log = logging.getLogger(__name__)


class Fallback:
    """A fallback decides inference by inference who runs it.

    Args:
        open_alone: gives how one processor runs an inference; called once, when it is first tried.
        expected_ms: of an inference of the pair, as it was checked.
        where: the plan, for messages.
    """

    def __init__(self, open_alone: Callable[[], Timed], expected_ms: float, where: Path) -> None:
        self._open, self._expected_ms, self._where = open_alone, expected_ms, where
        self._alone: Timed | None = None
        self._recent: deque[float] = deque(maxlen=WATCHED)
        self._tried: list[float] = []
        self._rest = 0
        self._usable, self.fell_back = True, False

    def run(self, pair: Timed, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run an inference on the pair, or on one processor where that is tried, or faster; one that fails is left."""
        slow = len(self._recent) == WATCHED and statistics.median(self._recent) > SLOW * self._expected_ms
        if self._usable and (self.fell_back or (slow and self._rest <= 0)):
            try:
                return self._on_one(inputs)
            except EdgeplanError as error:
                found, _ = pair(inputs)  # where that fails as well the inputs were wrong
                self._usable = self.fell_back = False
                log.warning("one processor alone fails (%s): both go on (%s)", error.what, self._where)
                return found
        found, ms = pair(inputs)
        self._recent.append(ms)
        self._rest -= 1
        return found

    def _on_one(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if self._alone is None:
            self._alone = self._open()
        found, ms = self._alone(inputs)
        if not self.fell_back:
            self._tried.append(ms)
            if len(self._tried) == TRIED:
                self._decide()
        return found

    def _decide(self) -> None:
        alone, both = statistics.median(self._tried[1:]), statistics.median(self._recent)
        self._tried, self._rest = [], PATIENCE
        if alone >= both:
            return
        self.fell_back = True
        log.warning(
            "both processors take %.3g ms where they took %.3g when the plan was checked, one alone %.3g: it goes on "
            "alone (%s; open the plan again to use both)",
            *(both, self._expected_ms, alone, self._where),
        )
