"""How the documentation site is built: ``make docs``.

Everything on it is in the repository or made from it; nothing is fetched.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sphinx.application import Sphinx

from fedast import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import api  # noqa: E402  (modules beside this file)
import generate  # noqa: E402
import links  # noqa: E402

project = "fedast"
author = "The fedast authors"
copyright = "The fedast authors, Apache-2.0"  # noqa: A001  (Sphinx asks for this name)
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "generated/*.md", "**/.ipynb_checkpoints"]
default_role = "code"

# --- Markdown -----------------------------------------------------------------------------

source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4

# --- notebooks and examples ---------------------------------------------------------------

# The notebook calls fedast, as in a shell in which this environment is active.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_show_tb = True
nb_merge_streams = True

doctest_global_setup = "import fedast"
trim_doctest_flags = True

# --- the Python API -----------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_use_type_comments = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 90
nitpicky = True
nitpick_ignore_regex = [
    # Other people's types, whose documentation is not at hand offline, and our own inner ones.
    (r"py:.*", r"(?!fedast\.)[\w.]+"),
    (r"py:.*", r"fedast\.[a-z_]+\..*"),
]

# --- looks --------------------------------------------------------------------------------

html_theme = "furo"
html_title = "fedast"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1f5f8b",
        "color-brand-content": "#1f5f8b",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7cc0ee",
        "color-brand-content": "#7cc0ee",
    },
    "navigation_with_keys": True,
}
pygments_style = "friendly"
pygments_dark_style = "native"


def _rewrite_links(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = links.rewrite(source[0], (HERE / page).parent)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", lambda _: generate.quick(HERE / "generated"))
    app.connect("source-read", _rewrite_links)
    app.connect("autodoc-process-signature", api.signature)
    app.connect("autodoc-process-docstring", api.docstring)
