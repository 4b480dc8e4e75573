"""The pages of this folder as a site (Sphinx): `make docs`, warnings are errors, no request to another server."""

import ast
from pathlib import Path

project = "edgeplan"
html_title = "edgeplan"
extensions = ["myst_parser"]
exclude_patterns = ["remarks"]  # texts of the reports
myst_heading_anchors = 3  # links to headings, as they work in the repository
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False


def _module_list() -> str:
    """The page of modules, by folder: the first sentence of each one's docstring."""
    package, lines = Path(__file__).parents[1] / "workflow/edgeplan", ["# Modules", "", "Written by `make docs`."]
    for folder in sorted({path.parent for path in package.rglob("*.py")}):
        lines += ["", f"## {folder.relative_to(package.parent)}", ""]
        for path in sorted(folder.glob("*.py")):
            told = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
            lines += [f"* `{path.stem}`: {told}"] if told else []
    return "\n".join(lines) + "\n"


_PAGE = Path(__file__).parent / "generated/modules.md"
_PAGE.parent.mkdir(exist_ok=True)
_PAGE.write_text(_module_list(), encoding="utf-8")
