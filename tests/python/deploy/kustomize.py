"""`kubectl kustomize` as far as deploy/kubernetes goes, for machines without kubectl.

Names of generated ConfigMaps get no hash. A test compares it with kubectl where there is one.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

_KNOWN = {"apiVersion", "kind", "labels", "resources", "components", "patches"}
_KNOWN |= {"configMapGenerator", "images"}


def render(folder: Path) -> list[Resource]:
    """The resources of a kustomization. Raises ValueError for what is not known here."""
    return _apply(folder, [])


def _apply(folder: Path, inherited: list[Resource]) -> list[Resource]:
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    if unknown := set(plan) - _KNOWN:
        raise ValueError(f"{folder}: {sorted(unknown)} is not known here")
    found = copy.deepcopy(inherited)
    for name in plan.get("resources", ()):
        path = folder / name
        if path.is_dir():
            found += render(path)
        else:
            found += list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    for generator in plan.get("configMapGenerator", ()):
        files = {name: (folder / name).read_text(encoding="utf-8") for name in generator["files"]}
        meta = {"name": generator["name"]}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files})
    for name in plan.get("components", ()):
        found = _apply(folder / name, found)
    for patch in plan.get("patches", ()):
        edits = yaml.safe_load((folder / patch["path"]).read_text(encoding="utf-8"))
        targets = [r for r in found if _is_target(r, patch["target"])]
        if not targets:
            raise ValueError(f"{folder}: nothing is {patch['target']}")
        for resource in targets:
            for edit in edits:
                _edit(resource, edit["op"], edit["path"], copy.deepcopy(edit.get("value")))
    for resource in found:
        for label in plan.get("labels", ()):
            resource["metadata"].setdefault("labels", {}).update(label["pairs"])
        for image in plan.get("images", ()):
            for container in _containers(resource):
                if container["image"] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    return found


def _is_target(resource: Resource, target: dict[str, str]) -> bool:
    is_kind = resource["kind"] == target["kind"]
    return is_kind and resource["metadata"]["name"] == target["name"]


def _containers(resource: Resource) -> list[Resource]:
    template = resource.get("spec", {}).get("template", {})
    found: list[Resource] = template.get("spec", {}).get("containers", [])
    return found


def _edit(resource: Resource, operation: str, path: str, value: Any) -> None:
    """One operation of RFC 6902."""
    keys = [key.replace("~1", "/").replace("~0", "~") for key in path.split("/")[1:]]
    place: Any = resource
    for key in keys[:-1]:
        place = place[int(key)] if isinstance(place, list) else place[key]
    key = keys[-1]
    if operation == "add" and isinstance(place, list):
        place.insert(len(place) if key == "-" else int(key), value)
    elif operation == "add" or (operation == "replace" and key in place):
        place[key] = value
    elif operation == "remove" and key in place:
        del place[key]
    else:
        raise ValueError(f"{operation} {path}: there is no such place")
