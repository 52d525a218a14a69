# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The API as a document, kept in the tree so that a change of contract shows in review.

Refresh it with `python -m service.api.openapi`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from service.api.examples import EXAMPLES
from service.api.problems import MEDIA_TYPE
from service.api.signals import SignalAsk

SNAPSHOT = Path(__file__).with_name("openapi.json")


def described(document: dict[str, Any], open_paths: frozenset[str]) -> dict[str, Any]:
    """The framework's document, with problems as what they are and tokens only where they are asked for."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    schemas |= _signal_schemas()
    for name, example in EXAMPLES.items():
        schemas[name]["examples"] = [example]
    shared: dict[str, Any] = document["components"].setdefault("responses", {})
    for path, item in document["paths"].items():
        for operation in item.values():
            if path in open_paths:
                operation.pop("security", None)
            for status, response in operation["responses"].items():
                if _is_problem(response):
                    name = f"Problem{status}"
                    shared[name] = {
                        "description": response["description"],
                        "content": {MEDIA_TYPE: response["content"]["application/json"]},
                    }
                    operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}
    return document


def _signal_schemas() -> dict[str, Any]:
    """Signals are validated one by one, so the framework does not see their schema."""
    template = "#/components/schemas/{model}"
    schema = SignalAsk.model_json_schema(ref_template=template)
    return {**schema.pop("$defs", {}), SignalAsk.__name__: schema}


def _is_problem(response: dict[str, Any]) -> bool:
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    return bool(schema.get("$ref", "").endswith("/ProblemBody"))


def document(app: FastAPI) -> str:
    """The OpenAPI document in one spelling: sorted, indented, ending in a newline."""
    return json.dumps(app.openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from service import bootstrap

    SNAPSHOT.write_text(document(bootstrap.described_app()), "utf-8")
