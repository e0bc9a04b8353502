"""What is installed, and what is registered: `environment` and `status`."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any, Literal

import cachetree
from cachetree import _layout, _register, _select
from cachetree import _support_window as window
from cachetree._gate import active_gates
from cachetree._layered import LayeredCache

__all__ = ["ClassStatus", "Environment", "GateInfo", "environment", "status"]

Tier = Literal["tested", "supported", "newer than tested"]


@dataclass(frozen=True)
class GateInfo:
    """One thing that is done differently because of the installed releases.

    Attributes:
        name: the adapter's module and method.
        because: the reason, in terms of behaviour.
        upstream: a link to the change or the report behind it.
    """

    name: str
    because: str
    upstream: str


@dataclass(frozen=True)
class Environment:
    """The installed releases and what serves them.

    Attributes:
        cachetree, python, torch, transformers: versions.
        torch_adapter, transformers_adapter: the modules that were selected for them.
        tier: ``"tested"`` for a pair of the matrix, ``"supported"`` for one within its bounds, ``"newer than tested"``
            if either release is newer than the newest in the matrix.
        gates: what is done differently on this pair, each with its reason.
    """

    cachetree: str
    python: str
    torch: str
    transformers: str
    torch_adapter: str
    transformers_adapter: str
    tier: Tier
    gates: tuple[GateInfo, ...]


@dataclass(frozen=True)
class ClassStatus:
    """Who has made a cache class a pytree node, and whether that can be relied on.

    Attributes:
        cls: the class.
        owner: the module whose functions are registered; None if the class is not registered.
        layout: how the owner describes a filled cache, as text; None if the class is not registered.
        fx_spec: whether ``torch.fx._pytree`` has a flatten function of its own for the class.
        sound: whether caches survive being taken apart and rebuilt, and exported modules can be called with them.
        reason: what goes wrong, if it is not sound.
    """

    cls: type
    owner: str | None
    layout: str | None
    fx_spec: bool
    sound: bool
    reason: str | None


def environment() -> Environment:
    """Describe the installed releases, the adapters that serve them and the gates that are active.

    Raises:
        UnsupportedTorchError: the installed torch is too old.
        UnsupportedTransformersError: the installed transformers is too old.
    """
    adapters = _select.adapters()
    torch_version, transformers_version = _select.installed()
    gates = active_gates(type(adapters.torch), type(adapters.transformers))
    return Environment(
        cachetree=cachetree.__version__,
        python=platform.python_version(),
        torch=torch_version,
        transformers=transformers_version,
        torch_adapter=type(adapters.torch).__module__,
        transformers_adapter=type(adapters.transformers).__module__,
        tier=_tier(_select.minor_of(torch_version), _select.minor_of(transformers_version)),
        gates=tuple(GateInfo(f"{cls.__module__}.{name}", gate.because, gate.upstream) for name, gate, cls in gates),
    )


def _tier(torch: tuple[int, int], transformers: tuple[int, int]) -> Tier:
    if torch > window.TORCH_NEWEST or transformers > window.TRANSFORMERS_NEWEST:
        return "newer than tested"
    return "tested" if (torch, transformers) in window.TESTED_PAIRS else "supported"


def status() -> tuple[ClassStatus, ...]:
    """Tell for each cache class who has registered it, and whether that is sound.

    The classes are those of the installed transformers, and every registered subclass of one of them.
    Registers nothing. Soundness is found by taking small caches apart and rebuilding them with whatever is registered.

    Raises:
        UnsupportedTorchError: the installed torch is too old.
        UnsupportedTransformersError: the installed transformers is too old.
    """
    adapters = _select.adapters()
    known = adapters.transformers.all_cache_classes()
    further = [cls for cls in adapters.torch.registered_classes() if issubclass(cls, known) and cls not in known]
    return tuple(_status_of(cls, adapters) for cls in (*known, *further))


def _status_of(cls: type, adapters: _select.Adapters) -> ClassStatus:
    entry = adapters.torch.look_up(cls)
    owner = _register.owner_of(cls)
    if owner is None:
        return ClassStatus(cls, None, None, entry.has_fx_spec, False, "not registered: torch.export refuses it")
    if _register.standing_node(cls) is not None and adapters.transformers.is_pair(cls):
        return ClassStatus(cls, owner, str({"format": _layout.FORMAT}), entry.has_fx_spec, True, None)
    if not adapters.transformers.covers(cls):
        unknown = "cachetree does not carry this class, and cannot tell"
        return ClassStatus(cls, owner, None, entry.has_fx_spec, False, unknown)
    layout, reason = _probe(LayeredCache(cls, adapters.transformers), adapters, has_fx_spec=entry.has_fx_spec)
    return ClassStatus(cls, owner, layout, entry.has_fx_spec, reason is None, reason)


def _probe(layered: LayeredCache, adapters: _select.Adapters, *, has_fx_spec: bool) -> tuple[str | None, str | None]:
    """Give the layout of a filled cache and the first fault of what is registered for its class."""
    tensors = adapters.torch.example_tensors(4)
    plain = layered.unflatten([tensors[:2], tensors[2:]], {"format": _layout.FORMAT})
    holes: dict[str, Any] = {"format": _layout.FORMAT, "layers": [{"kind": "full", "empty": True}, {"kind": "full"}]}
    skipped = layered.unflatten([tensors[:1], tensors[1:2]], holes)
    layout: str | None = None
    try:
        leaves, spec = adapters.torch.flatten(plain)
        layout = str(spec.context)
        if [id(leaf) for leaf in leaves] != [id(tensor) for tensor in tensors]:
            return layout, "the leaves of a filled cache are not its keys followed by its values"
        if adapters.torch.needs_fx_spec and not has_fx_spec:
            return layout, "calling an exported module fails: there is no flatten function in torch.fx._pytree"
        exported = adapters.torch.flatten_as_exported(plain, spec)
        if [id(leaf) for leaf in exported] != [id(leaf) for leaf in leaves]:
            return layout, "exported modules compute wrong numbers: torch.fx._pytree flattens a cache differently"
        rebuilt = adapters.torch.unflatten(*adapters.torch.flatten(skipped))
        (keys, _), context = layered.flatten(rebuilt)
        if context != holes or len(keys) != 1:
            return layout, "a layer that holds nothing yet is lost, and the layers behind it change places"
        if has_fx_spec and not adapters.torch.needs_fx_spec:
            return layout, "a flatten function in torch.fx._pytree hides torch's check of the number of layers"
    except Exception as error:  # noqa: BLE001  (somebody else's functions may fail in any way: that is the finding)
        return layout, f"it fails with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return layout, None
