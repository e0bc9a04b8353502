"""register, its handles and undo: validate everything, then change, then be able to undo."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from cachetree import _select
from cachetree._layered import LayeredCache
from cachetree._pair import PairCache
from cachetree.errors import AlreadyRegisteredError, InvalidArgumentError, UnsupportedCacheError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from cachetree._node import NodeSpec
    from cachetree._select import Adapters
    from cachetree._torch.current import Entry

__all__ = ["OnConflict", "Registration", "node_for", "owner_of", "register", "standing_node"]

OnConflict = Literal["error", "replace", "keep"]


@dataclass
class _Standing:
    """A registration of ours that is in force, with what it took the place of."""

    node: NodeSpec
    before: Entry
    installed: Entry
    handles: set[object] = field(default_factory=set)


# Torch's registries are one per process, and so is this.
_LOCK = threading.RLock()
_STANDING: dict[type, _Standing] = {}


class Registration:
    """The handle that `register` gives: what was registered, and the way back.

    Usable as a context manager, which undoes the registration on exit.

    Attributes:
        classes: the classes that this call registered. With ``on_conflict="keep"``, without those that were left to
            their owner.
    """

    def __init__(self, classes: tuple[type, ...]) -> None:
        self.classes = classes
        self._key = object()

    def undo(self) -> None:
        """Put back exactly what was registered before; calling it again does nothing.

        A class that other handles registered too stays registered until the last of them is undone. Whatever
        somebody else has changed about a class in the meantime stays as it is.
        """
        adapter = _select.adapters().torch
        with _LOCK:
            for cls in reversed(self.classes):
                standing = _STANDING.get(cls)
                if standing is None or self._key not in standing.handles:
                    continue
                if standing.handles == {self._key}:
                    adapter.restore(cls, standing.before, standing.installed)
                    del _STANDING[cls]
                standing.handles.discard(self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<Registration of {', '.join(cls.__name__ for cls in self.classes) or 'nothing'}>"


def register(*classes: type, on_conflict: OnConflict = "error") -> Registration:
    """Make cache classes pytree nodes of torch, so that `torch.export` takes and returns their instances.

    Calling it several times, also from several libraries, is fine: a class stays registered until the last handle is
    undone. A registration that transformers made itself is superseded, and put back by `Registration.undo`.

    Args:
        *classes: the classes to register: `DynamicCache`, `StaticCache`, `EncoderDecoderCache` and subclasses of them.
            torch matches exact types, so a subclass has to be named. None given: every cache class of the installed
            transformers that can be a node.
        on_conflict: what to do about a class that neither this package nor transformers has registered: raise an
            error, replace that registration until `undo`, or keep it and register the others.

    Returns:
        The handle, which is also a context manager.

    Raises:
        UnsupportedTorchError: the installed torch is too old.
        UnsupportedTransformersError: the installed transformers is too old.
        UnsupportedCacheError: one of *classes* is no cache class, or one that cannot be a node.
        AlreadyRegisteredError: somebody else has registered one of *classes*, and *on_conflict* is ``"error"``; or
            another class is registered under the serialized name of one of them.
        InvalidArgumentError: *on_conflict* is none of the three words.
        After any of these nothing has changed.

    Warns:
        OldTorchWarning: once per process, on torch below 2.6.

    Example:
        >>> with cachetree.register():  # doctest: +SKIP
        ...     program = torch.export.export(model, (), {"input_ids": ids, "past_key_values": cache}, strict=False)
    """
    return register_at(classes, on_conflict, stacklevel=3)


def register_at(classes: tuple[type, ...], on_conflict: OnConflict, stacklevel: int) -> Registration:
    """Register as `register` does, for a caller so many frames up."""
    if on_conflict not in get_args(OnConflict):
        raise InvalidArgumentError(
            f"expected on_conflict to be one of {', '.join(map(repr, get_args(OnConflict)))}, but found {on_conflict!r}"
        )
    adapters = _select.adapters()
    by_class = {node.cls: node for node in map(node_for, classes or adapters.transformers.cache_classes())}
    with _LOCK:
        nodes = [node for node in by_class.values() if not _is_left_to_owner(node, on_conflict)]
        for node in nodes:
            _require_own_name(node, adapters)
        adapters.torch.announce(stacklevel)
        handle = Registration(tuple(node.cls for node in nodes))
        try:
            for node in nodes:
                _hold(node, adapters, handle)
        except BaseException:
            handle.undo()
            raise
    return handle


def _require_own_name(node: NodeSpec, adapters: Adapters) -> None:
    other = adapters.torch.owner_of_name(node.name)
    if other is not None and other is not node.cls:
        raise AlreadyRegisteredError(
            f"another class is registered under the name {node.name!r}, which {node.cls!r} would have too: files could "
            "not tell the two apart; rename one of them, or undo the other registration first"
        )


def _hold(node: NodeSpec, adapters: Adapters, handle: Registration) -> None:
    """Have *handle* hold the registration of a class, and make that registration if it is not in force."""
    standing = _STANDING.get(node.cls)
    if standing is None or not _is_in_force(standing, adapters):
        now = adapters.torch.look_up(node.cls, node.name)
        try:
            if standing is None:
                standing = _Standing(node, now, adapters.torch.install(node))
            else:
                before = standing.before.with_changes(standing.installed, now)
                standing.installed = adapters.torch.install(standing.node)
                standing.before = before
            _STANDING[node.cls] = standing
        except BaseException:
            adapters.torch.restore(node.cls, now, adapters.torch.look_up(node.cls, node.name))
            raise
    standing.handles.add(handle._key)


def _is_in_force(standing: _Standing, adapters: Adapters) -> bool:
    return adapters.torch.look_up(standing.node.cls).node is standing.installed.node


def _is_left_to_owner(node: NodeSpec, on_conflict: OnConflict) -> bool:
    owner = owner_of(node.cls)
    if owner is None or on_conflict == "replace" or _is_ours_or_upstream(owner):
        return False
    if on_conflict == "keep":
        return True
    raise AlreadyRegisteredError(
        f"{node.cls.__name__} is already registered as a pytree node by {owner}. Remove that registration, or pass "
        "on_conflict='replace' to supersede it until undo(), or on_conflict='keep' to leave it in force"
    )


def _is_ours_or_upstream(owner: str) -> bool:
    return owner.partition(".")[0] in {"cachetree", "transformers"}


def owner_of(cls: type) -> str | None:
    """Name the module whose functions are registered for *cls*, or None if *cls* is not registered."""
    entry = _select.adapters().torch.look_up(cls)
    if entry.node is None:
        return None
    functions = (entry.node.flatten_fn, entry.node.unflatten_fn)
    modules = [getattr(_unwrapped(function), "__module__", None) for function in functions]
    return next((module for module in modules if module), "an unknown module")


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def standing_node(cls: type) -> NodeSpec | None:
    """Give the node of ours that is in force for *cls*, or None."""
    with _LOCK:
        standing = _STANDING.get(cls)
        return standing.node if standing is not None and _is_in_force(standing, _select.adapters()) else None


def node_for(cls: Any) -> NodeSpec:
    """Build the node for a cache class.

    Raises:
        UnsupportedCacheError: *cls* is no class, no cache class, or one that cannot be a node.
    """
    adapter = _select.adapters().transformers
    if not isinstance(cls, type):
        hint = "pass classes, not a sequence of them: register(*classes)"
        if adapter.is_cache(cls):
            hint = f"pass its class: register({type(cls).__name__})"
        elif not isinstance(cls, list | tuple | set | dict):
            hint = "pass a cache class, such as register(DynamicCache)"
        raise UnsupportedCacheError(f"register() expected classes, but found {cls!r}; {hint}")
    if adapter.is_pair(cls):
        return PairCache(cls, adapter, lambda cache: node_for(type(cache)).leaves(cache)).spec()
    if not adapter.covers(cls):
        known = ", ".join(known.__name__ for known in adapter.cache_classes())
        raise UnsupportedCacheError(
            f"expected a cache class that cachetree can make a pytree node ({known}, and subclasses of them without "
            f"further state), but found {cls.__module__}.{cls.__qualname__}"
        )
    return LayeredCache(cls, adapter).spec()
