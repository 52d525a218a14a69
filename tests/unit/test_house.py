# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The house holds: import contracts, names, headers, generated files, entry points."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import jsonschema
import pytest
import yaml

from rules.overlay import overlay_json_schema
from rules.schema import signature_json_schema

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("relight", "rules", "models", "detectors", "service", "controllers")
CODE = (*PACKAGES, "benchmarks", "tests")
BANNED = {"utils", "common", "helpers", "misc", "manager", "constants", "base"}
HEADER = "# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0\n"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def modules(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_the_import_contracts_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_installed_distribution_ships_one_of_our_names() -> None:
    owners = packages_distributions()
    taken = {name: sorted(set(owners.get(name, ())) - {"relight"}) for name in (*PACKAGES, "datasets", "notebooks")}
    assert {name: by for name, by in taken.items() if by} == {}


def test_the_walk_over_distributions_sees_what_is_installed() -> None:
    names = {d.metadata["Name"].lower() for d in distributions()}
    assert {"relight", "drain3", "pydantic"} <= names
    assert "drain3" in packages_distributions()


def test_no_module_has_a_name_that_means_nothing() -> None:
    found = [path for path in modules(*CODE) if path.stem in BANNED or path.parent.name in BANNED]
    assert found == []


def test_every_python_file_opens_with_the_licence_and_every_module_with_one_sentence() -> None:
    bare = [str(p) for p in modules(*CODE) if not p.read_text("utf-8").startswith(HEADER)]
    silent = [str(p) for p in modules(*PACKAGES) if not ast.get_docstring(ast.parse(p.read_text("utf-8")))]
    assert (bare, silent) == ([], [])


def test_no_public_name_is_defined_in_two_modules_of_one_package() -> None:
    places: dict[tuple[Path, str], set[str]] = defaultdict(set)
    for path in modules(*PACKAGES):
        if path.parent == ROOT / "service" / "commands":
            continue  # one module a sub-command: each may have its own `new` or `show`
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                places[path.parent, node.name].add(str(path.relative_to(ROOT)))
    twice = {name: sorted(at) for (_, name), at in places.items() if len(at) > 1 and not name.startswith("_")}
    assert twice == {}


def test_no_text_of_ours_names_a_machine() -> None:
    private = re.compile(r"/(?:root|work|home/[a-z]+)/[a-z.]")
    kinds = ("*.py", "*.md", "*.toml", "*.yaml", "*.lock")
    files = [path for kind in kinds for path in ROOT.rglob(kind) if ".venv" not in path.parts]
    own = [p for p in files if p.parts[len(ROOT.parts)] not in {"tests", "datasets", "rules"}]
    assert own
    assert [str(path) for path in own if private.search(path.read_text("utf-8"))] == []


def test_the_published_schema_is_the_one_that_the_code_generates() -> None:
    published = json.loads((ROOT / "rules/schema/signature.v1.json").read_text("utf-8"))
    assert published == signature_json_schema(), "refresh it: relight rules schema > rules/schema/signature.v1.json"
    assert published["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(published)


def test_the_published_schema_of_overlays_is_the_one_that_the_code_generates() -> None:
    published = json.loads((ROOT / "rules/schema/overlay.v1.json").read_text("utf-8"))
    assert published == overlay_json_schema(), "relight rules schema --overlay > rules/schema/overlay.v1.json"
    jsonschema.Draft7Validator.check_schema(published)


def test_every_shipped_signature_points_editors_to_the_schema_and_satisfies_it() -> None:
    validator = jsonschema.Draft7Validator(signature_json_schema())
    wrong: dict[str, str] = {}
    files = sorted((ROOT / "rules/packs").rglob("*.yaml"))
    for path in files:
        text = path.read_text("utf-8")
        modeline = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
        if modeline is None or not (path.parent / modeline[1]).resolve().is_file():
            wrong[path.name] = "the first line is no modeline that leads to the schema"
        if "EDIT:" in text:
            wrong[path.name] = "a place that `relight rules new` left to fill in"
        error = next(validator.iter_errors(yaml.load(text, yaml.CSafeLoader)), None)
        if error is not None:
            wrong[path.name] = error.message
    assert files
    assert wrong == {}


def test_the_schema_refuses_what_the_code_refuses() -> None:
    validator = jsonschema.Draft7Validator(signature_json_schema())
    good = yaml.safe_load((ROOT / "rules/packs/nccl/collective_timeout.yaml").read_text("utf-8"))
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, "strems": ["kernel"]})
    assert not validator.is_valid({**good, "role": "rooot"})
    assert not validator.is_valid({key: value for key, value in good.items() if key != "does_not_prove"})


def entry_points() -> list[tuple[str, str]]:
    project = PYPROJECT["project"]
    groups = {**project["entry-points"], "console_scripts": project["scripts"]}
    return [(f"{group}:{name}", target) for group, names in groups.items() for name, target in names.items()]


@pytest.mark.parametrize(("name", "target"), entry_points())
def test_entry_points_lead_to_something(name: str, target: str) -> None:
    module, _, attribute = target.partition(":")
    assert callable(getattr(importlib.import_module(module), attribute)), name


def test_every_command_leads_to_something() -> None:
    from service.cli import _COMMANDS

    for target, _ in _COMMANDS.values():
        module, _, attribute = target.partition(":")
        assert hasattr(importlib.import_module(module), attribute), target


def test_data_folders_shadow_no_package() -> None:
    assert [str(p) for name in ("datasets", "notebooks") for p in (ROOT / name).rglob("__init__.py")] == []


def test_the_lock_is_hashed_and_names_no_address() -> None:
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    assert re.search(r"://|^\s*-|file:|find-links|index", lock.replace("    --hash=", ""), re.MULTILINE) is None
    pins = re.findall(r"^([a-z0-9-]+)==\S+(?: ;.*?)? \\\n    --hash=sha256:", lock, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^[a-z0-9]", lock, re.MULTILINE))
    wanted = {re.split(r"[\[<>=; ]", need)[0].lower() for need in PYPROJECT["project"]["dependencies"]}
    assert wanted <= set(pins), "refresh it: make lock"
