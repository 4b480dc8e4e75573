"""This module lists all tables and figures of the chapter on partitions, of both papers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from edgeplan.chapters.partition.eop.figures import EOP_FIGURES
from edgeplan.chapters.partition.eop.tables import EOP_TABLES
from edgeplan.chapters.partition.evaluation.checked_page import CHECKED_TABLES
from edgeplan.chapters.partition.evaluation.figures import PARTITION_FIGURES
from edgeplan.chapters.partition.evaluation.tables import PARTITION_TABLES
from edgeplan.reporting import kit

TABLES: Mapping[str, kit.TableSpec[Any]] = MappingProxyType({**CHECKED_TABLES, **PARTITION_TABLES, **EOP_TABLES})
FIGURES: Mapping[str, kit.FigureSpec[Any]] = MappingProxyType({**PARTITION_FIGURES, **EOP_FIGURES})
