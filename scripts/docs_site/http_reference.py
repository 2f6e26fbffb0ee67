"""The HTTP reference: every route, request body and answer, from the server's OpenAPI document."""

from __future__ import annotations

from typing import Any

from markup import code, escaped, table

from astrai.server import ServerSettings, create_app
from astrai.server.field_texts import FIELD_TEXTS

Schema = dict[str, Any]
_THEMES = list(FIELD_TEXTS)


def page() -> str:
    """Routes in the order in which the server has them, then what their schemas refer to."""
    document = create_app(None, ServerSettings(model="none")).openapi()
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = document["components"]["schemas"]
    text = ["## Routes\n", _summary(operations)]
    text += [_operation(*operation, schemas) for operation in operations]
    text.append("## Objects\n")
    shown = {_body_name(operation) for _, _, operation in operations}
    text += [_object(name, schema) for name, schema in sorted(schemas.items()) if name not in shown]
    return "\n".join(text)


def _title(method: str, path: str) -> str:
    return f"{method.upper()} {path}"


def _anchor(method: str, path: str) -> str:
    return method + path.replace("/", "-").replace("{", "").replace("}", "")


def _summary(operations: list[tuple[str, str, Schema]]) -> str:
    rows = [
        [f"[{_title(method, path)}](#{_anchor(method, path)})", _answer(operation)]
        for method, path, operation in operations
    ]
    return table(("route", "answer"), rows)


def _operation(method: str, path: str, operation: Schema, schemas: dict[str, Schema]) -> str:
    text = [f"### `{_title(method, path)}` {{ #{_anchor(method, path)} }}\n"]
    if said := operation.get("description"):
        text.append(escaped(said) + "\n")
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [
            [code(p["name"]), p["in"], _kind(p["schema"]), _default(p["schema"])]
            for p in parameters
        ]
        text.append(table(("parameter", "in", "value", "default"), rows))
    if body := _body_name(operation):
        text.append(f'Body, `application/json`:<a id="{body}"></a>\n')
        text.append(_fields(schemas[body], is_body=True))
    rows = [
        [status, _content(answer), escaped(answer["description"])]
        for status, answer in sorted(operation["responses"].items())
    ]
    text.append("Answers:\n")
    text.append(table(("status", "body", "when"), rows))
    return "\n".join(text)


def _body_name(operation: Schema) -> str | None:
    body = operation.get("requestBody")
    if body is None:
        return None
    name: str = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return name


def _answer(operation: Schema) -> str:
    served = operation["responses"].get("200")
    return "an error, always" if served is None else _content(served)


def _content(answer: Schema) -> str:
    kinds = []
    for media, content in answer.get("content", {}).items():
        is_json = media == "application/json"
        kinds.append(_kind(content["schema"]) if is_json else code(media))
    return " or ".join(kinds)


def _object(name: str, schema: Schema) -> str:
    heading = f"### {name} {{ #{name} }}\n"
    said = escaped(schema["description"]) + "\n" if schema.get("description") else ""
    fields = _fields(schema) if schema.get("properties") else "Any JSON object.\n"
    return "\n".join(part for part in (heading, said, fields) if part)


def _fields(schema: Schema, is_body: bool = False) -> str:
    """Required fields first; the others of a body by theme, as the list of meanings has them."""
    required = schema.get("required", [])
    fields = list(schema["properties"].items())
    if is_body:
        fields.sort(key=lambda field: _THEMES.index(field[0]))
    rows = []
    for name, field in sorted(fields, key=lambda f: f[0] not in required):
        default = "required" if name in required else _default(field)
        rows.append([code(name), _kind(field), default, field["description"]])
    return table(("field", "value", "default", "meaning"), rows)


def _default(schema: Schema) -> str:
    default = schema.get("default")
    if default is None:
        return "absent"
    return code(str(default).lower() if isinstance(default, bool) else str(default))


def _kind(schema: Schema) -> str:
    """What a schema accepts, null left out: a null field is an absent one."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name})"
    if variants := schema.get("anyOf"):
        kinds = [_kind(variant) for variant in variants if variant.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if values := schema.get("enum"):
        return ", ".join(code(f'"{value}"') for value in values)
    if "const" in schema:
        return code(f'"{schema["const"]}"')
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}{_bounds(schema, 'Items')}"
    if kind == "string":
        pattern = schema.get("pattern")
        return f"text like {code(pattern)}" if pattern else "text" + _bounds(schema, "Length")
    if kind in ("integer", "number"):
        return ("whole number" if kind == "integer" else "number") + _range(schema)
    return {"boolean": "true or false", "object": "object"}.get(kind or "", "any value")


def _bounds(schema: Schema, what: str) -> str:
    low, high = schema.get("min" + what, 0), schema.get("max" + what)
    if high is None:
        return f", at least {low}" if low else ""
    return f", {low} to {high}" if low else f", at most {high}"


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    is_64_bit = isinstance(high, int) and high >= 2**63 - 1
    if is_64_bit:
        return " of 64 bits"
    if low is None and high is None:
        return ""
    if high is None:
        return f", at least {low}"
    return f", {low} to {high}"
