"""How Sphinx builds the site: `python -m sphinx -W --keep-going docs build/site`.

Needs the extra `docs`. A page asks no other host for anything: fonts and scripts are the theme's
own, and formulas are MathML, which browsers draw themselves.
"""

import logging
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_extensions"), str(DOCS.parent)]

import rt_keras  # noqa: E402

project = "rt_keras"
author = "The authors of rt_keras"
release = version = rt_keras.__version__
html_title = f"rt_keras {release}"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "declarations",
    "docstrings",
    "mathml",
]
templates_path = ["_templates"]
exclude_patterns = ["_*"]
nitpicky = True
# Names of Python, TensorFlow and Keras, whose documentation lies elsewhere, and code in docstrings,
# which is a link where it can be one. What else refers to a name of `rt_keras` has to find it.
nitpick_ignore_regex = [("py:.*", r"(?!rt_keras\.).*"), ("py:obj", ".*")]

autosummary_generate = True
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
default_role = "code_or_name"
# Options and strings in help and docstrings stay as one types them: --config, "geglu".
smartquotes = False
maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
napoleon_custom_sections = [("Call arguments", "params_style"), ("Weights", "params_style")]
napoleon_numpy_docstring = False

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
# Notebooks are shown as they are stored; the tests execute them.
nb_execution_mode = "off"
nb_ipywidgets_js = {}

html_theme = "pydata_sphinx_theme"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "show_nav_level": 1,
}
# Sections of one page have nothing to list beside it.
single_pages = ("changelog", "glossary", "papers", "stability", "start", "versions")
html_sidebars = dict.fromkeys(single_pages, [])
copyright = f"{author}. Apache License 2.0"


def prepare(app, config):
    """Copies the notebooks to where Sphinx looks for pages, and removes generated pages.

    Sphinx does not remove the page of a name that the reference no longer lists.
    """
    for path in (DOCS.parent / "notebooks").glob("*.ipynb"):
        shutil.copy(path, DOCS / "notebooks")
    shutil.rmtree(DOCS / "reference" / "generated", ignore_errors=True)


def setup(app):
    """Registers what is done before pages are read."""
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    app.connect("config-inited", prepare)
