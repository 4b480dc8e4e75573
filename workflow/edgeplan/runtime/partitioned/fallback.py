"""A fallback for a pair whose inferences take longer than when its plan was checked: its first processor alone.

Work beside it slows a pair more than one processor: each hand-over waits for whichever of them was taken. So a pair that has
become slow is held against its first processor, over some inferences of the caller's, and whichever is faster goes on.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: So many inferences in a row whose median is so many times what it was when the plan was checked are too slow.
WATCHED, SLOW = 7, 1.3
#: Inferences by which the first processor is tried, the first of which does not count; those until it is tried again.
TRIED, PATIENCE = 4, 100
Run = Callable[[Mapping[str, Any]], dict[str, Any]]
log = logging.getLogger(__name__)


class Fallback:
    """A fallback decides inference by inference who runs it.

    Args:
        open_alone: gives how the first processor runs an inference; called once, when it is first tried.
        expected_ms: of an inference of the pair, as it was checked.
        where: the plan, for messages.
    """

    def __init__(self, open_alone: Callable[[], Run], expected_ms: float, where: Path) -> None:
        self._open, self._expected_ms, self._where = open_alone, expected_ms, where
        self._alone: Run | None = None
        self._recent: deque[float] = deque(maxlen=WATCHED)
        self._tried: list[float] = []
        self._rest = 0
        self.fell_back = False

    def run(self, pair: Run, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run an inference on the pair, or on its first processor where that is tried, or has proven faster."""
        trying = self.fell_back or (
            self._rest <= 0 and len(self._recent) == WATCHED and statistics.median(self._recent) > SLOW * self._expected_ms
        )
        began = time.perf_counter()
        if not trying:
            found = pair(inputs)
            self._recent.append((time.perf_counter() - began) * 1e3)
            self._rest -= 1
            return found
        if self._alone is None:
            self._alone = self._open()
            began = time.perf_counter()
        found = self._alone(inputs)
        if not self.fell_back:
            self._tried.append((time.perf_counter() - began) * 1e3)
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
            "both processors take %.3g ms where they took %.3g when the plan was checked, the first one alone %.3g: it goes on "
            "alone (%s; open the plan again to use both)",
            *(both, self._expected_ms, alone, self._where),
        )
