"""The site's page of the command line has every verb, and every option that it takes with what it does."""

from __future__ import annotations

import argparse
import importlib.util

import pytest

from command import ROOT
from kinetoscope.cli import VERBS, parser_of

pytest.importorskip("mkdocs")
_SPEC = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
assert _SPEC is not None
assert _SPEC.loader is not None
site_pages = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(site_pages)


def test_every_option_stands_in_the_page_of_its_verb() -> None:
    page = "\n".join(site_pages.command_line())
    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")[1:]}
    assert list(sections) == list(VERBS)
    for verb in VERBS:
        for action in parser_of(verb)._actions:
            assert action.help not in (None, argparse.SUPPRESS), f"{verb} {action.dest}"
            assert all(word in sections[verb] for word in action.option_strings), action.option_strings
