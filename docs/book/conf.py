"""The book of all pages, for Sphinx. `cargo xtask book` runs it. docs/SUMMARY.md says which page stands where."""

import re

from pygments.lexers.rust import RustLexer

project = "Destage"
extensions = ["myst_parser"]
root_doc = "docs/SUMMARY"
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/*.md", "examples/**/README.md"]
exclude_patterns = [".*", "crates", "packaging", "target", "tests", "xtask"]
html_theme = "furo"
html_title = "Destage"
html_copy_source = False
# Headings get the names under which the pages link to them.
myst_heading_anchors = 6


def contents(summary):
    """The summary's headings as parts of the book, its links as their pages."""
    parts = re.findall(r"^# (.+)\n\n((?:- .+\n?)+)", summary, re.MULTILINE)
    text = ["# Destage\n"]
    for title, links in parts:
        pages = re.findall(r"^- \[(.+)\]\((.+)\.md\)$", links, re.MULTILINE)
        text += [f"```{{toctree}}\n:caption: {title}\n:maxdepth: 1\n"]
        text += [f"{name} <{page}>" for name, page in pages] + ["```\n"]
    return "\n".join(text)


def read(_app, page, source):
    if page == root_doc:
        source[0] = contents(source[0])


def setup(app):
    app.connect("source-read", read)
    app.add_lexer("rust,no_run", RustLexer)
