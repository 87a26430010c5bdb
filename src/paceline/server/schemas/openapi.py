"""Responses in the OpenAPI document."""

from typing import Any

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
FAULT = {"description": "The error", "content": {"application/json": {"schema": ERROR}}}

MESSAGE_ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}
MESSAGE_FAULT = {
    "description": "The error",
    "content": {"application/json": {"schema": MESSAGE_ERROR}},
}

Documented = dict[int | str, dict[str, Any]]

ERRORS: Documented = {"4XX": FAULT, "5XX": FAULT}
GENERATED: Documented = {
    200: {
        "description": "The answer, or a stream of it",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
    **ERRORS,
}
MESSAGE_ERRORS: Documented = {"4XX": MESSAGE_FAULT, "5XX": MESSAGE_FAULT}
MESSAGE_GENERATED: Documented = {200: GENERATED[200], **MESSAGE_ERRORS}
INVOKED: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}
PROBED: Documented = {503: {"description": "Not ready, and why"}}
