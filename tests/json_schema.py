"""The part of JSON Schema that docs/report-schema.json uses, in one function."""

_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
_KNOWN = {
    "$schema", "$defs", "$ref", "title", "description", "type", "const", "enum", "anyOf", "minimum", "items",
    "required", "properties", "additionalProperties",
}  # fmt: skip


def violations(value, schema, root=None, path="$"):
    """Every place where a value breaks the schema, as text; [] if it is valid."""
    root = schema if root is None else root
    assert set(schema) <= _KNOWN, f"this validator does not know {set(schema) - _KNOWN}"
    if "$ref" in schema:
        return violations(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, path)
    if "const" in schema and value != schema["const"]:
        return [f"{path}: {value!r} is not {schema['const']!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{path}: {value!r} is none of {schema['enum']}"]
    if "anyOf" in schema and all(violations(value, each, root, path) for each in schema["anyOf"]):
        return [f"{path}: {value!r} fits none"]
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        fits = any(isinstance(value, _TYPES[name]) for name in names)
        if not fits or (isinstance(value, bool) and "boolean" not in names):
            return [f"{path}: {value!r} is no {' or '.join(names)}"]
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        return [f"{path}: {value!r} is below {schema['minimum']}"]
    found = []
    if isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            found += violations(each, schema["items"], root, f"{path}[{index}]")
    if isinstance(value, dict):
        found += [f"{path}: {name!r} is missing" for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            if inner is False:
                found.append(f"{path}: {name!r} is not known")
            else:
                found += violations(each, inner, root, f"{path}.{name}")
    return found
