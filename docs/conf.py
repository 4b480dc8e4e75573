"""The pages of this folder as a site (Sphinx): `make docs`, warnings are errors, no request to another server."""

project = "edgeplan"
html_title = "edgeplan"
extensions = ["myst_parser"]
exclude_patterns = ["remarks"]  # texts of the reports
myst_heading_anchors = 3  # links to headings, as they work in the repository
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
