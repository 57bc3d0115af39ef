"""Check the built site: `python docs/site/links.py FOLDER`; exit code 1 if a link is broken.

Each link inside the site is a file, and its anchor an id of that page; no page loads a script, a
style or a picture from another host, so that the site can be read without internet. Links to other
hosts are not followed.
"""

from __future__ import annotations

import argparse
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"img", "script", "iframe", "source", "link"}


class Page(HTMLParser):
    """The ids of a page, and its links with whether they are loaded with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[tuple[str, bool]] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the ids and links of a tag."""
        held = dict(attrs)
        self.ids |= {held[name] for name in ("id", "name") if held.get(name)}
        for name in ("href", "src"):
            if held.get(name):
                self.links.add((held[name], tag in _LOADED))


def broken(folder: Path) -> list[str]:
    """Return a line for each broken link, and for each thing that another host would send."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link, loaded in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                wrong = loaded and parts.scheme != "data"
            else:
                name = unquote(parts.path)
                target = (path.parent / name).resolve() if name else path
                anchor, other = unquote(parts.fragment), pages.get(target)
                wrong = not target.is_file() or bool(other and anchor and anchor not in other.ids)
            if wrong:
                found.append(f"{path.relative_to(folder.resolve())}: {link}")
    return found


def main() -> int:
    """Check a folder, and print what is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    found = broken(parser.parse_args().folder)
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
