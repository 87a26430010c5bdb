"""What the backends compile, and what they say about what they do not."""

import subprocess
import sys

import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import ConfigError, RequestError
from paceline.structured import backend as port
from paceline.structured.compiler import GrammarCompiler
from paceline.structured.token_table import TokenTable
from tests.structured.support import accepts, backend, every_backend, table

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = {
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}


@every_backend
@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Constraint.grammar('root ::= "a"\nroot2 ::= ("b"'), r"line 2|2\("),
        (Constraint.grammar('root ::= "a" other'), "other.*(not defined|not found)"),
        (Constraint.json({"type": "objct"}), "type"),
        (Constraint.json({"$ref": "#/$defs/x"}), "(points to nothing|does not exist)"),
        (Constraint.json({"type": "integer", "minimum": 3, "maximum": 2}), "minimum.*maximum"),
        (Constraint.json({"type": "object", "minProperties": 3}), "minProperties 3 needs"),
        (Constraint.structural_tag({"format": {"type": "unknown"}}), "(unknown|triggered_tags)"),
    ],
)
def test_errors_say_what_is_wrong(name: str, constraint: Constraint, message: str) -> None:
    with pytest.raises(RequestError, match=f"(?s){message}") as caught:
        backend(name).compile(constraint)
    assert "/project/" not in str(caught.value)
    assert "\n" not in str(caught.value)


@every_backend
@pytest.mark.parametrize(
    "form",
    [
        5,
        {"type": "triggered_tags"},
        {"type": "triggered_tags", "triggers": 5, "tags": []},
        *(
            {"type": "triggered_tags", "triggers": ["<"], "tags": [tag]}
            for tag in (
                3,
                {"begin": "<"},
                {"begin": "<", "content": 5, "end": ">"},
                {"begin": "<", "content": {"type": "json_schema"}, "end": ">"},
                {"begin": 5, "content": {"type": "json_schema", "json_schema": True}, "end": ">"},
                {"begin": "<", "content": {"type": "json_schema", "json_schema": True}, "end": 7},
            )
        ),
    ],
)
def test_malformed_structural_tags_are_refused(name: str, form: object) -> None:
    with pytest.raises(RequestError):
        backend(name).compile(Constraint.structural_tag({"format": form}))


@every_backend
def test_grammars_in_both_notations(name: str) -> None:
    ebnf = 'root ::= term (("+" | "-") term)*\nterm ::= [0-9]+ | "(" root ")"'
    lark = 'start: term (("+" | "-") term)*\nterm: /[0-9]+/ | "(" start ")"'
    for text in (ebnf, lark):
        grammar = backend(name).compile(Constraint.grammar(text))
        assert accepts(grammar, "1+(2-33)")
        assert not accepts(grammar, "1+")
        assert not accepts(grammar, "(1")


@every_backend
def test_text_with_tags(name: str) -> None:
    grammar = backend(name).compile(Constraint.structural_tag(TAG))
    assert accepts(grammar, "no tag at all")
    assert accepts(grammar, 'see <f>{"a": 1}</f> and <f>{"a":2}</f>.')
    assert not accepts(grammar, 'see <f>{"a": "x"}</f>')
    assert not accepts(grammar, "see <fx")


@every_backend
def test_schemas_of_tags_are_checked_too(name: str) -> None:
    tag = {**TAG, "structures": [{**TAG["structures"][0], "schema": {"not": {}}}]}
    with pytest.raises(RequestError, match="not"):
        backend(name).compile(Constraint.structural_tag(tag))


@every_backend
def test_documents_without_free_whitespace(name: str) -> None:
    schema = {"type": "array", "items": SCHEMA}
    grammar = backend(name).compile(Constraint.json(schema, any_whitespace=False))
    assert accepts(grammar, '[{"a": 1}, {"a": 2}]')
    assert not accepts(grammar, '[{"a":1},\n{"a": 2}]')
    assert accepts(backend(name).compile(Constraint.json(schema)), '[ {"a":1},\n{"a": 2}]')


def test_bounds_that_llguidance_gets_wrong_are_refused() -> None:
    schema = {"type": "number", "exclusiveMinimum": 2, "maximum": 2.5}
    with pytest.raises(RequestError, match=r"exclusiveMinimum 2 so near 2\.5"):
        backend("llguidance").compile(Constraint.json(schema))
    grammar = backend("xgrammar").compile(Constraint.json(schema))
    assert not accepts(grammar, "2")
    assert accepts(grammar, "2.25")


def test_options_of_a_client_do_not_reach_llguidance() -> None:
    lenient = {"not": {}, "x-guidance": {"lenient": True}}
    with pytest.raises(RequestError, match="not"):
        backend("llguidance").compile(Constraint.json(lenient))


@every_backend
def test_a_grammar_knows_its_size(name: str) -> None:
    small = backend(name).compile(Constraint.choice(["a"]))
    large = backend(name).compile(Constraint.choice([f"choice {n}" for n in range(500)]))
    assert 0 < small.size_bytes < large.size_bytes


def test_names_of_backends() -> None:
    assert port.backend_names("auto") == ("xgrammar", "llguidance")
    assert port.backend_names("llguidance") == ("llguidance",)
    assert port.backend_names("guidance") == ("llguidance",)
    wanted = "no grammar backend 'outlines': there are xgrammar, llguidance, guidance, auto, and"
    with pytest.raises(ConfigError, match=wanted):
        port.backend_names("outlines")


class Anything(port.GrammarBackend):
    """Accepts constraints and refuses all of them."""

    def __init__(self, table: TokenTable) -> None:
        self.table = table

    def compile(self, constraint: Constraint) -> port.Grammar:
        raise RequestError(f"{constraint.kind} is refused")


def test_a_backend_by_its_dotted_path() -> None:
    path = f"{__name__}.Anything"
    assert port.backend_names(path) == (path,)
    with pytest.raises(RequestError, match="regex is refused"):
        port.backend_class(path)(table()).compile(Constraint.regex("a"))
    compiler = GrammarCompiler(table(), port.backend_names(path))
    with pytest.raises(RequestError, match="regex is refused"):
        compiler.submit(Constraint.regex("a")).result(60.0)
    compiler.close()
    with pytest.raises(ConfigError, match="is not a subclass of GrammarBackend"):
        port.backend_names("collections.OrderedDict")


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    monkeypatch.delitem(sys.modules, "paceline.structured.xgrammar_backend", raising=False)
    wanted = r"no grammar backend 'xgrammar': .*; pip install 'paceline\[xgrammar\]'"
    with pytest.raises(ConfigError, match=wanted):
        port.backend_class("xgrammar")


@pytest.mark.parametrize(
    ("installed", "names"),
    [
        ({"llguidance"}, ("llguidance",)),
        ({"xgrammar"}, ("xgrammar",)),
        (set[str](), ("xgrammar", "llguidance")),
    ],
)
def test_auto_tries_the_libraries_that_are_installed(
    installed: set[str], names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "find_spec", lambda name: name if name in installed else None)
    assert port.backend_names("auto") == names
    assert port.backend_names("xgrammar") == (("xgrammar",))


LIGHT = """
import sys
import paceline.structured.compiler, paceline.structured.request_fields
import paceline.structured.llguidance_backend
heavy = {"torch", "transformers", "tvm_ffi", "xgrammar"} & sys.modules.keys()
sys.modules["torch"] = None
import paceline.structured.xgrammar_backend
print(*heavy, *({"transformers", "xgrammar"} & sys.modules.keys()))
"""


def test_the_package_imports_without_torch_and_transformers() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
