"""What mkdocs does not do by itself: pages from outside docs/, links to them, and a check of what is fetched.

The README, the changelog and the page on the sample data become pages. The reference is written from the names that
`dpfc_cli` offers. Other files that pages link to are copied as text. So a link leads somewhere on the site and in the
repository alike.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "sample_data/README.md": "sample_data.md",
}
"""Pages of the repository that lie outside docs/, with their places on the site."""
CORE = "dpfc_cli/privacy/__init__.py"
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\s(?:src|data)=[\"']?(?:https?:)?//"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon|modulepreload|dns-prefetch))[^>]*\shref=[\"']?(?:https?:)?//"
    r"|@import\s+(?:url\()?[\"']?(?:https?:)?//|url\([\"']?(?:https?:)?//",
    re.IGNORECASE,
)
"""What makes a browser ask another host."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie in docs/, and the files that some page links to."""
    added = {place: (ROOT / path).read_text("utf-8") for path, place in PAGES.items()}
    added |= {"reference.md": _reference(), "core.md": _core()}
    pages = [ROOT / path for path in PAGES] + sorted((ROOT / "docs").rglob("*.md"))
    for page in pages:
        for target in LINK.findall(page.read_text("utf-8")):
            path = _of_repository(page, target)
            if (ROOT / path).is_file() and _place(path) == f"files/{path}.txt":
                added[_place(path)] = (ROOT / path).read_text("utf-8")
    for place, text in added.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to files outside docs/ to their places on the site."""
    here = page.file.src_uri
    homes = {place: path for path, place in PAGES.items()}
    source = ROOT / homes.get(here, f"docs/{here}")
    return LINK.sub(
        lambda found: os.path.relpath(_place(_of_repository(source, found[1])), Path(here).parent), markdown
    )


def on_post_build(config: Any) -> None:
    """Refuse a site whose pages or styles ask another host for anything."""
    site = Path(config.site_dir)
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        if found := FETCHED.search(path.read_text("utf-8")):
            raise PluginError(f"{path.relative_to(site)} fetches from another host: {found[0]}")


def _of_repository(page: Path, target: str) -> str:
    """A link's target as a path from the repository's root."""
    return os.path.relpath((page.parent / target).resolve(), ROOT)


def _place(path: str) -> str:
    """Where a file of the repository lies on the site."""
    if path in PAGES:
        return PAGES[path]
    if path == CORE:
        return "core.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}.txt"


def _reference() -> str:
    """A page with every public name, functions before classes."""
    sys.path.insert(0, str(ROOT))
    from dpfc_cli import _homes
    from dpfc_cli.points import added

    homes = _homes() | {name: each.value.partition(":")[0] for name, each in added("dpfc.names").items()}
    parts = [
        "# Python reference",
        "`import dpfc_cli as dpfc` offers these names. [From Python](python.md) shows their use.",
    ]
    for title, chosen in (("Functions", str.islower), ("Classes", lambda name: not name.islower())):
        parts += [f"## {title}"]
        parts += [
            f"::: {home}.{name}\n    options: {{heading_level: 3}}"
            for name, home in sorted(homes.items())
            if chosen(name)
        ]
    return "\n\n".join(parts)


def _core() -> str:
    """A page with the modules of the trusted core, in the order in which its docstring wants them read."""
    text = (ROOT / CORE).read_text("utf-8")
    options = "options: {heading_level: 3, show_root_heading: false, show_root_toc_entry: false}"
    parts = [
        "# The trusted core",
        "The proofs stand beside the code. This page has their texts, the modules hold the code.",
        text.split('"""')[1],
    ]
    for name in re.findall(r"^\d+\. `(\w+)`", text, re.MULTILINE):
        parts += [f"## {name}", f"::: dpfc_cli.privacy.{name}\n    {options}"]
    return "\n\n".join(parts)
