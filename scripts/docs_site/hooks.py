"""MkDocs' hooks: documents from outside docs/, pages made from the code, links, navigation.

MkDocs calls the functions that begin with on_. Warnings logged here fail the build.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configuration_reference
import cpp_reference
import http_reference
import results_table
from commonmark import portable
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from repository_links import ROOT, SiteMap, bad_address

log = logging.getLogger("mkdocs.hooks.astrai")

# What a page's `<!-- made: NAME ARGUMENTS -->` becomes.
GENERATORS: dict[str, Callable[..., str]] = {
    "settings": configuration_reference.settings_page,
    "environment": configuration_reference.environment_table,
    "build-options": configuration_reference.build_options_table,
    "http": http_reference.page,
    "cpp": cpp_reference.page,
    "results": results_table.page,
    "result": results_table.excerpt,
}
LANGUAGES = {".cpp": "cpp", ".json": "json", ".py": "python", ".yaml": "yaml"}
ASSETS = {
    "images/icon.svg": "python/astrai/server/page/icon.svg",
    "style.css": "scripts/docs_site/style.css",
}

_MADE = re.compile(r"^<!-- made: (.+) -->$", re.MULTILINE)
_TEXT_FOR_LIST = re.compile(r"<p>(?:[^<]*\n)?((?:- |\d+\. |\| )[^<\n]*)")
_RUN_MARK = re.compile(r"^ *<!-- run: .*? -->\n", re.MULTILINE)

_site = SiteMap()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expands "FOLDER/*" in the navigation."""
    _site.rescan()
    named = {entry for entry in _leaves(config.nav or []) if not entry.endswith("/*")}
    config.nav = _expanded(config.nav or [], named)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents outside docs/ and a page for each other file that a document links to."""
    for page, source in _site.outside_pages.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page, source in _site.file_pages.items():
        files.append(File.generated(config, page, content=_file_page(source)))
    for asset, path in ASSETS.items():
        files.append(File.generated(config, asset, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with made parts in place and its links as the site has them."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # the tabs are enough

    def made(match: re.Match[str]) -> str:
        name, *arguments = match[1].split()
        if name not in GENERATORS:
            log.warning("%s: nothing makes %r", page.file.src_uri, name)
            return ""
        return GENERATORS[name](*arguments)

    def moved(target: str) -> str:
        if problem := bad_address(target):
            log.warning("%s: link %s: %s", page.file.src_uri, target, problem)
        return _site.link(page.file.src_uri, target)

    markdown = portable(_site.map_links(_RUN_MARK.sub("", markdown), moved))
    return _MADE.sub(made, markdown)  # last: what is made has the site's own links


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Warns of lists and tables that came out as text."""
    for text in _TEXT_FOR_LIST.findall(html):
        log.warning("%s: a list or table came out as text: %s", page.file.src_uri, text)
    return html


def _leaves(nav: list[Any]) -> list[str]:
    found: list[str] = []
    for entry in nav:
        if isinstance(entry, dict):
            for value in entry.values():
                found += _leaves(value if isinstance(value, list) else [value])
        else:
            found.append(entry)
    return found


def _expanded(nav: list[Any], named: set[str]) -> list[Any]:
    made: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            made += [
                {k: _expanded(v, named) if isinstance(v, list) else v} for k, v in entry.items()
            ]
        elif entry.endswith("/*"):
            pages = [page for page in _site.pages_in(entry[:-1]) if page not in named]
            # Titles of result files are sentences; their names fit a list.
            is_results = entry.startswith("results/")
            made += [{_name(page): page} for page in pages] if is_results else pages
        else:
            made.append(entry)
    return made


def _name(page: str) -> str:
    return Path(page).stem.replace("_", " ").capitalize()


def _file_page(source: Path) -> str:
    """A source file that documents link to, as a page that the search leaves out."""
    text = (ROOT / source).read_text(encoding="utf-8").rstrip()
    plain = "bash" if text.startswith("#!/usr/bin/env bash") else "text"
    kind = LANGUAGES.get(source.suffix, plain)
    head = f"---\nsearch:\n  exclude: true\n---\n# {source}\n\n"
    return f"{head}````{kind}\n{text}\n````\n"
