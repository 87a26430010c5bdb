from paceline.tools.calls import Tool
from paceline.tools.structure import calls_schema, holdable, relocated

LOOK = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/place"}, "$ref": {"type": "string"}},
    "$defs": {"place": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/place"}]}},
}


def test_an_array_of_calls_has_one_form_for_each_tool() -> None:
    schema = calls_schema([Tool("now"), Tool("look", parameters={"type": "object"})], parallel=True)
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    now, look = schema["items"]["anyOf"]
    assert now["properties"]["name"] == {"const": "now"}
    assert now["properties"]["parameters"] == {"$ref": "#/$defs/now"}
    assert schema["$defs"]["now"] == {"type": "object", "properties": {}}
    assert look["required"] == ["name", "parameters"]
    assert "maxItems" not in schema
    assert calls_schema([Tool("now")], parallel=False)["maxItems"] == 1


def test_references_of_a_schema_follow_it() -> None:
    schema = calls_schema([Tool("now"), Tool("look", parameters=LOOK)], parallel=True)
    place = "#/$defs/look"
    moved = schema["$defs"]["look"]
    assert moved["properties"]["at"] == {"$ref": f"{place}/$defs/place"}
    assert moved["properties"]["$ref"] == {"type": "string"}
    assert moved["$defs"]["place"]["anyOf"][1] == {"$ref": f"{place}/$defs/place"}
    assert relocated({"$ref": "#"}, "#/x") == {"$ref": "#/x"}
    assert relocated({"$ref": "https://a.b/c"}, "#/x") == {"$ref": "https://a.b/c"}


def test_data_in_a_schema_stays_as_it_is() -> None:
    data = {"$ref": "#/$defs/place", "deep": [{"$ref": "#"}]}
    schema = {"const": data, "enum": [data], "default": data, "examples": [data]}
    assert relocated(schema, "#/x") == schema
    named = {"properties": {"const": {"$ref": "#"}, "$ref": {"enum": [data]}}}
    moved = {"properties": {"const": {"$ref": "#/x"}, "$ref": {"enum": [data]}}}
    assert relocated(named, "#/x") == moved


def test_what_no_grammar_holds_is_left_out() -> None:
    schema = {
        "properties": {
            "not": {"type": "array", "uniqueItems": True, "items": {"oneOf": [{"not": {}}, {}]}},
            "far": {"$ref": "https://a.b/c"},
            "near": {"$ref": "#/$defs/if"},
        },
        "$defs": {"if": {"if": {}, "const": {"not": 1}}},
        "dependentRequired": {"not": ["far"]},
    }
    assert holdable(schema) == {
        "properties": {
            "not": {"type": "array", "items": {"anyOf": [{}, {}]}},
            "far": {},
            "near": {"$ref": "#/$defs/if"},
        },
        "$defs": {"if": {"const": {"not": 1}}},
    }
