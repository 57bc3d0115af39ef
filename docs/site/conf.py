"""Sphinx's settings; the pages are those that stage.py has put together."""

import re
from pathlib import Path

_INIT = (Path(__file__).parents[2] / "hoodie_nb" / "__init__.py").read_text()

project = "hoodie_nb"
author = "The hoodie_nb authors"
version = release = re.search(r'^__version__ = "(.+)"', _INIT, re.MULTILINE)[1]
extensions = ["myst_nb"]
root_doc = "index"
html_title = f"hoodie_nb {release}"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 6  # as GitHub names them
nb_execution_mode = "off"  # the stored outputs are shown
nb_merge_streams = True
nb_number_source_lines = False
