"""Templates of the HTML pages, and how texts of the tables and remarks are shown in them."""

from __future__ import annotations

import re

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

_CODE = re.compile("`([^`]+)`")


def templates() -> Environment:
    """The templates of this package. They escape what they show; the filter `prose` is for texts that are also Markdown."""
    pages = Environment(loader=PackageLoader("edgeplan.report", "."), autoescape=True, undefined=StrictUndefined)
    pages.filters["prose"] = prose
    return pages


def prose(text: str) -> Markup:
    """A text as HTML: escaped, with what stands between backticks as code. An odd backtick stays as it is."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704  the text is escaped before
