"""Links of the pages that leave ``docs/``.

The pages are read in the repository too, where ``../results`` or ``../CONTRIBUTING.md`` are a click
away. On the site the second is a page, files can be downloaded (MyST sees to that), and a folder
leads to the repository if FEDAST_DOCS_REPOSITORY says where its files can be seen; else it is text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = {
    "README.md#the-demo": "start/demo.md",
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/analysis.ipynb": "generated/analysis.ipynb",
}
"""What is a page of the site, under another name."""
LINK = re.compile(r"(?<!!)\[(?P<text>[^\[\]]*)\]\((?P<to>[^()\s#:]+)(?P<at>#[^()\s]*)?\)")


def rewrite(text: str, folder: Path) -> str:
    """The text of a page in ``folder`` as the site needs it."""

    def other(link: re.Match[str]) -> str:
        target = (folder / link["to"]).resolve()
        if not target.is_relative_to(ROOT) or target.is_relative_to(DOCS):
            return link[0]
        name, heading = target.relative_to(ROOT).as_posix(), link["at"] or ""
        page = PAGES.get(name + heading)
        if page is None and name in PAGES:
            page = PAGES[name] + heading
        if page is not None:
            return f"[{link['text']}]({os.path.relpath(DOCS / page.partition('#')[0], folder)}" + (
                f"#{page.partition('#')[2]})" if "#" in page else ")"
            )
        if target.is_dir():
            base = os.environ.get("FEDAST_DOCS_REPOSITORY")
            return f"[{link['text']}]({base.rstrip('/')}/{name})" if base else link["text"]
        return link[0]

    return LINK.sub(other, text)
