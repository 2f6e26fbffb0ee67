"""The parts of the documentation site that are made from the code: nothing is left out."""

from __future__ import annotations

import json
import re

import configuration_reference
import cpp_reference
import http_reference
import pytest
import results_table
from commonmark import portable
from cpp_declarations import declarations, file_comment
from repository_links import ROOT, SiteMap, bad_address, links

import astrai
from astrai import env
from astrai.cli.options import server_options
from astrai.server import ServerSettings, create_app


def test_every_setting_is_there_with_its_flag_key_and_help() -> None:
    page = configuration_reference.settings_page()
    for option in server_options():
        row = next(line for line in page.splitlines() if f'id="{option.field}"' in line)
        assert f"`--{option.flag.replace('_', '-')}`" in row
        assert f"key `{option.field}`" in row
        assert option.help.split(";")[0].split("<")[0][:40] in row.replace("\\", "")


def test_settings_name_the_variable_that_stands_in_for_them() -> None:
    page = configuration_reference.settings_page()
    named = set(re.findall(r"variable `(\w+)`", page))
    assert named == {"ASTRAI_API_KEY", "ASTRAI_LOG_LEVEL"} and named <= env.VARIABLES.keys()
    assert all(f"`{name}`" in configuration_reference.environment_table() for name in env.VARIABLES)


def test_every_build_option_is_there() -> None:
    text = (ROOT / "cmake" / "AstraiOptions.cmake").read_text(encoding="utf-8")
    declared = re.findall(r'^\w+\((ASTRAI_\w+) .*"\w[^"]+".*\)$', text, re.MULTILINE)
    page = configuration_reference.build_options_table()
    assert len(declared) >= 5 and all(f"`{name}`" in page for name in declared)


def test_every_route_field_and_schema_is_there() -> None:
    page = http_reference.page()
    document = create_app(None, ServerSettings(model="none")).openapi()
    for path, methods in document["paths"].items():
        assert all(f"### `{method.upper()} {path}`" in page for method in methods)
    anchors = set(re.findall(r'\{ #([\w-]+) \}|<a id="(\w+)">', page))
    known = {name for pair in anchors for name in pair if name}
    for name, schema in document["components"]["schemas"].items():
        assert name in known
        for field, declared in schema.get("properties", {}).items():
            assert re.search(
                rf"^\| `{field}` \|.*{re.escape(declared['description'])} \|$", page, re.M
            )
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) <= known


TYPE = re.compile(r"^(?:class|struct)(?: alignas\(\d+\))? (\w+)[^;]*\{$", re.MULTILINE)


def test_every_public_header_and_type_is_there() -> None:
    page = cpp_reference.page()
    n_public = 0
    for header in cpp_reference.HEADERS.glob("*.h"):
        source = header.read_text(encoding="utf-8")
        is_part = "not an interface" in source.partition("#pragma once")[0]
        public, _, internal = source.partition("// From here on not an interface")
        assert (f"## `astrai/{header.name}`" in page) == (not is_part)
        n_public += not is_part
        for part, is_there in ((public, not is_part), (internal, False)):
            for name in TYPE.findall(part):
                found = f"`{name}` {{ #{name} }}" in page
                assert found == is_there, f"{header.name}: {name}"
    assert n_public > 20 and page.count("```") % 2 == 0 and "not an interface" not in page


def test_every_name_of_the_package_is_in_the_python_reference() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    for name in set(astrai.__all__) - {"__version__"}:
        assert re.search(rf"^::: astrai(\._C)?\.{name}$", page, re.MULTILINE), name


HEADER = """\
// What it holds.
//
//   a drawing | of it
#pragma once
#include <vector>
namespace astrai {

// Sum of `a` and b_count. Throws nothing.
// a: a number
//    of any size
int add(int a,
        int b_count = 2);

// Keeps numbers.
class Box {
 public:
  explicit Box(int n) : n_(n) {}
  int n() const { return n_; }  // how many
  int m() const;

 private:
  int n_;
};

struct Pair {
  int a;  // f(x)
  int b = 0;
};
constexpr int kLimit = 3;

}  // namespace astrai
"""


def test_a_header_is_read_as_written() -> None:
    assert file_comment(HEADER) == ["What it holds.", "", "  a drawing | of it"]
    add, box, pair, limit = declarations(HEADER)
    assert add.text == "int add(int a,\n        int b_count = 2);"
    assert (box.kind, box.name, pair.is_plain_struct) == ("class", "Box", True)
    assert [member.text for member in box.members] == [
        "explicit Box(int n);",
        "int n() const;  // how many",
        "int m() const;",
    ]
    assert [member.joins for member in box.members] == [False, True, True]
    assert limit.text == "constexpr int kLimit = 3;"
    assert cpp_reference.prose(add.comment) == (
        "Sum of `a` and `b_count`. Throws nothing.\n\n- `a`: a number of any size"
    )


def test_result_files_are_listed_and_quoted() -> None:
    page = results_table.page()
    files = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    assert page.count("](results/") == len(files)
    quoted = results_table.excerpt("gpu_engine", "llama")
    assert quoted.startswith("| work |")
    llama, qwen = (f"| {first_figure(model)} |" for model in ("llama", "qwen"))
    assert llama in quoted and qwen not in quoted


def first_figure(model: str) -> str:
    path = ROOT / "benchmarks" / "results" / f"gpu_engine_{model}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return next(f"{row['median']:.0f}" for row in rows if row["work"].startswith("W1"))


@pytest.mark.parametrize(
    ("page", "target", "moved"),
    [
        ("index.md", "docs/guide/serving.md", "guide/serving.md"),
        ("index.md", "CONTRIBUTING.md#check", "contributing.md#check"),
        ("guide/serving.md", "../../README.md", "../index.md"),
        ("guide/serving.md", "../../docker/serve.yaml", "../source/docker/serve.yaml.md"),
        ("guide/serving.md", "tools.md#formats", "tools.md#formats"),
        ("contributing.md", "docs/decisions/README.md", "decisions/README.md"),
        ("index.md", "benchmarks/results", "performance.md"),
        ("index.md", "https://example.org/a", "https://example.org/a"),
    ],
)
def test_links_of_the_repository_become_the_sites(page: str, target: str, moved: str) -> None:
    site = SiteMap()
    site.rescan()
    assert site.link(page, target) == moved


def test_lists_and_tables_below_text_are_set_apart() -> None:
    text = "A:\n- b\n  more\n- c\n\nD:\n| e |\n| - |\n```\nf\n- g\n```\n"
    assert portable(text) == ("A:\n\n- b\n  more\n- c\n\nD:\n\n| e |\n| - |\n```\nf\n- g\n```\n")
    assert portable("1. a\n   - b\n     c\n") == "1. a\n    - b\n     c\n"


def test_links_in_code_are_text() -> None:
    text = "[a](b.md) `[c](d.md)`\n```\n[e](f.md)\n```\n![g](h.png)\n"
    assert links(text) == ["b.md", "h.png"]


@pytest.mark.parametrize(
    ("address", "is_good"),
    [
        ("https://example.org/a", True),
        ("http://127.0.0.1:8000/", True),
        ("mailto:a@example.org", True),
        ("page.md", True),
        ("http://example.org", False),
        ("https://example", False),
        ("https:/example.org", False),
        ("ftp://example.org", False),
    ],
)
def test_addresses_are_checked_by_form(address: str, is_good: bool) -> None:
    assert (bad_address(address) is None) == is_good
