"""Where the KV of a prompt is read by another engine or from one: `kv_transfer_params`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from paceline.core.errors import RequestError

NAME = "kv_transfer_params"
MOST_BLOCKS = 1 << 16  # of a prompt; the engine reads them between two steps
MOST_PORT = 65535
DEEPEST = 32  # lists and objects in one another


@dataclass(frozen=True, slots=True)
class KVTransfer:
    """The transfer that a request asks for, or that its answer offers, in vLLM's field names.

        router -> prefill engine   do_remote_decode
        prefill engine -> router   do_remote_prefill, and where the blocks of the prompt are
        router -> decode engine    the same

    Attributes:
        do_remote_decode: Keep the blocks of the prompt until another engine has read them.
        do_remote_prefill: Read blocks of the prompt from another engine.
        remote_engine_id: The engine that has the blocks.
        remote_request_id: Its request.
        remote_host: Address of its side channel.
        remote_port: Port of its side channel.
        remote_block_ids: Its full blocks of the prompt, in order.
        remote_num_tokens: Tokens of its prompt.
        remote_blocks_expiry_time: When it frees blocks that no engine has begun to read, in seconds
            since the epoch.
        tp_size: Number of devices that share each block.
        transfer_mode: "pull": the decode engine reads.
    """

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str = ""
    remote_request_id: str = ""
    remote_host: str = ""
    remote_port: int = 0
    remote_block_ids: tuple[int, ...] = ()
    remote_num_tokens: int = 0
    remote_blocks_expiry_time: float = 0.0
    tp_size: int = 1
    transfer_mode: str = "pull"

    @staticmethod
    def of(params: Mapping[str, Any] | None) -> "KVTransfer | None":
        """Read `kv_transfer_params`: null stands for the default, unknown fields are ignored.

        None if nothing is to be transferred; RequestError if the fields are wrong.
        """
        if not params:
            return None
        given = {one.name: params.get(one.name) for one in fields(KVTransfer)}
        known = {name: value for name, value in given.items() if value is not None}
        for name, value in known.items():
            if problem := wrong_value(name, value):
                raise RequestError(f"{NAME}: {name} is {str(value)[:80]}; {problem}")
        if "remote_block_ids" in known:
            known["remote_block_ids"] = tuple(known["remote_block_ids"])
        found = KVTransfer(**known)
        if problem := found._contradiction():
            raise RequestError(f"{NAME}: {problem}")
        return found if found.do_remote_decode or found.do_remote_prefill else None

    def _contradiction(self) -> str:
        if self.do_remote_decode and self.do_remote_prefill:
            return "do_remote_decode and do_remote_prefill are both true; set one of them"
        if not self.do_remote_prefill:
            return ""
        named = self.remote_engine_id and self.remote_request_id
        if not (named and self.remote_host and self.remote_port):
            return (
                "do_remote_prefill needs remote_engine_id, remote_request_id, remote_host and "
                "remote_port; pass on the parameters that the prefill engine returned"
            )
        if self.tp_size != 1:
            return f"tp_size is {self.tp_size}; blocks of one device can be read, so it must be 1"
        if self.transfer_mode != "pull":
            return f"transfer_mode is {self.transfer_mode!r}; it must be 'pull'"
        return ""

    def to_params(self) -> dict[str, Any]:
        """The fields of an answer."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return found | {"remote_block_ids": list(self.remote_block_ids)}


KINDS: dict[str, tuple[type, ...]] = {
    one.name: (float, int) if one.type is float else (cast("type", one.type),)
    for one in fields(KVTransfer)
    if one.name != "remote_block_ids"
}


def wrong_value(name: str, value: Any) -> str:
    """What is wrong with the value of a field; empty: nothing."""
    if name == "remote_block_ids":
        return (
            "" if are_blocks(value) else f"it must be a list of at most {MOST_BLOCKS} block numbers"
        )
    if type(value) not in KINDS[name]:
        return f"it must be {KINDS[name][0].__name__}"
    if name == "remote_port" and not 0 <= value <= MOST_PORT:
        return f"it must lie in 0..{MOST_PORT}"
    return ""


def are_blocks(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(cast("list[Any]", value)) > MOST_BLOCKS:
        return False
    return all(type(block) is int and block >= 0 for block in cast("list[Any]", value))


def unsendable(params: Mapping[str, Any] | None) -> str:
    """Why the parameters cannot be sent to another process; empty: they can."""
    problem = "" if params is None else unsendable_value(params, 0)
    return f"{NAME}: {problem}" if problem else ""


def unsendable_value(value: Any, depth: int) -> str:
    match value:
        case int():
            fits = -(2**63) <= value < 2**64
            return "" if fits else "an integer does not fit into 64 bits; send it as a text"
        case str():
            return "" if is_text(value) else "a text has an unpaired surrogate; remove it"
        case dict() | list() | tuple() if depth == DEEPEST:
            return f"lists and objects are nested more than {DEEPEST} deep"
        case dict():
            entries = cast("dict[Any, Any]", value)
            return first_problem([*entries, *entries.values()], depth + 1)
        case list() | tuple():
            return first_problem(cast("list[Any]", value), depth + 1)
        case _:
            return ""


def first_problem(values: Iterable[Any], depth: int) -> str:
    return next(filter(None, (unsendable_value(value, depth) for value in values)), "")


def is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
