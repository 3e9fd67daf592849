"""Messages between a client and an engine in another process. Plain data, pickled by the transport.

Times travel as durations: the clocks of two machines have nothing in common. Vectors of equal length travel as a single
array, which the transport may pass by reference; vectors arrive as copies, since a receiver may change a vector.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from teola_plugin.engines import Capabilities, Delta, Done, Failed, Outcome, Urgency
from teola_plugin.errors import EngineError
from teola_plugin.profile import LlmProfile, Profile

PROTOCOL = 5
"""The protocol version, which changes when processes of two versions would misunderstand each other."""


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """A request for items. `ids`: the client's ids, one per payload. `left_s`: seconds to the deadline; `age_s`:
    seconds since the query began."""

    op: str
    settings: Mapping[str, Any]
    ids: tuple[int, ...]
    payloads: Any
    owner: Hashable
    tenant: str
    urgency: Urgency
    left_s: float
    age_s: float


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket (unix_rpc.py), with the secret that proves that a caller was told the address."""

    path: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The description of an engine for an attaching client."""

    protocol: int
    version: str
    python: str
    name: str
    kind: str
    model: str = field(repr=False)
    identity: str
    config: Mapping[str, Any] = field(repr=False)
    capabilities: Capabilities
    profile: Profile | LlmProfile | None
    pid: int
    node: str
    instances: int
    nearby: UnixAddress | None = None
    """The socket for processes of the same machine."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Arrays of equal shape and type, stacked."""

    array: np.ndarray


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes by the client's ids, in the order of the events.

    `number`: messages with outcomes count from 0 for each `epoch`, the time since the server first heard of the client.
    Messages may arrive in another order.
    """

    epoch: str
    number: int
    ids: tuple[int, ...]
    kinds: str
    """For each: d(elta), D(one), F(ailed)."""

    values: Any
    is_saturated: bool = False
    """Whether the engine is too busy for rewrites which cost compute."""

    def __iter__(self) -> Any:
        """Iterate over pairs of id and outcome."""
        makers: dict[str, Callable[[Any], Outcome]] = {"d": Delta, "D": Done, "F": _failed}
        for item_id, kind, value in zip(self.ids, self.kinds, unpacked(self.values), strict=True):
            yield item_id, makers[kind](value)


def said(epoch: str, number: int, outcomes: Sequence[tuple[int, Outcome]], *, is_saturated: bool = False) -> Outcomes:
    """Return the message for outcomes."""
    kinds: list[str] = []
    values: list[Any] = []
    for _, outcome in outcomes:
        match outcome:
            case Delta(text):
                kinds.append("d")
                values.append(text)
            case Done(value):
                kinds.append("D")
                values.append(value)
            case Failed():
                kinds.append("F")
                values.append(PackedError.of(outcome.error))
    return Outcomes(
        epoch, number, tuple(item_id for item_id, _ in outcomes), "".join(kinds), packed(values), is_saturated
    )


def packed(values: Iterable[Any]) -> Any:
    """Return the values as a single array, if all are arrays of equal shape and type, else as a list."""
    found = list(values)
    first = found[0] if found else None
    if not isinstance(first, np.ndarray) or first.dtype == object:
        return found
    if all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in found):
        return _Rows(np.stack(found))
    return found


def unpacked(values: Any) -> list[Any]:
    """Return the `packed` values."""
    found = values.array if isinstance(values, _Rows) else values
    return [each.copy() if isinstance(each, np.ndarray) else each for each in found]


@dataclass(frozen=True, slots=True)
class PackedError:
    """An error in transit. `text` describes an error that cannot be pickled or whose class is not known."""

    pickled: bytes
    text: str

    @classmethod
    def of(cls, error: BaseException) -> PackedError:
        """Pack an error, or only the text of an error that cannot be pickled."""
        text = f"{type(error).__name__}: {error}"
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:  # any error of pickling a user's exception
            pickled = b""
        return cls(pickled, text)

    def arrived(self) -> BaseException:
        """Return the error, or EngineError with the text where the error's class is not known."""
        try:
            found = pickle.loads(self.pickled)
        except Exception:  # it did not travel, or what raised it (vLLM, say) is not installed here
            return EngineError(self.text)
        return found if isinstance(found, BaseException) else EngineError(self.text)


def _failed(error: PackedError) -> Failed:
    return Failed(error.arrived())
