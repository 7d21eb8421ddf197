"""What `mkdocs build` asks while it builds the site."""

import re
from pathlib import Path
from typing import Any

# `[words](address)`, the address without a scheme.
_LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(((?:\.\./)+[^)\s#]*)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Links to files of the repository that are not on the site become their words and path."""
    docs = Path(config["docs_dir"]).resolve()
    folder = (docs / page.file.src_uri).parent

    def plain(link: "re.Match[str]") -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(docs) or not target.exists():
            return link[0]  # the site's own, or broken: mkdocs looks at it
        path = target.relative_to(docs.parent)
        return link[1] if str(path) in link[1] else f"{link[1]} (`{path}`)"

    return _LINK.sub(plain, markdown)
