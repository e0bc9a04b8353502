"""torch as it is from 2.10 on."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.fx._pytree as fx_pytree
import torch.utils._pytree as pytree

if TYPE_CHECKING:
    from cachetree import _layout
    from cachetree._node import NodeSpec
    from cachetree._transformers.current import Adapter as TransformersAdapter

__all__ = ["Adapter", "Entry"]

# The tables that torch keeps by class, each with the module it lives in.
_BY_CLASS: tuple[tuple[Any, str], ...] = (
    (pytree, "SUPPORTED_NODES"),
    (pytree, "SUPPORTED_SERIALIZED_TYPES"),
    (pytree, "CONSTANT_NODES"),
    (fx_pytree, "SUPPORTED_NODES"),
    (fx_pytree, "SUPPORTED_NODES_EXACT_MATCH"),
)

_ABSENT = object()


@dataclass
class Entry:
    """All that torch holds about one class: a row across its tables."""

    by_class: list[object] = field(default_factory=list)
    by_name: dict[str, object] = field(default_factory=dict)
    pending: list[tuple[int, Any]] = field(default_factory=list)
    cxx: Any = None

    def with_changes(self, installed: Entry, now: Entry) -> Entry:
        """Give what to put back if, since *installed*, others have changed what torch holds to *now*."""
        changed = [
            current if current is not ours and current is not _ABSENT else earlier
            for earlier, ours, current in zip(self.by_class, installed.by_class, now.by_class, strict=True)
        ]
        names = {name: owner for name, owner in now.by_name.items() if owner is not installed.by_name.get(name)}
        theirs = [item for item in now.pending if not any(item[1] is ours for _, ours in installed.pending)]
        foreign_cxx = now.cxx if now.cxx is not None and now.cxx is not installed.cxx else self.cxx
        return Entry(changed, {**self.by_name, **names}, theirs or self.pending, foreign_cxx)

    @property
    def node(self) -> Any:
        """The definition in the python registry, or None."""
        found = self.by_class[0]
        return None if found is _ABSENT else found

    @property
    def has_fx_spec(self) -> bool:
        """Whether ``torch.fx._pytree`` has a flatten function of its own for the class."""
        return self.by_class[3] is not _ABSENT


class Adapter:
    """How torch is told of a node."""

    # Whether calling an exported module needs a flatten function in torch.fx._pytree. Where it does not, one only
    # hides torch's own comparison of what a program expects with what it is given.
    needs_fx_spec = False

    def announce(self, stacklevel: int) -> None:
        """Warn of what is known to differ on this torch; nothing is."""

    def look_up(self, cls: type, *names: str) -> Entry:
        """Read everything that torch holds about *cls*, and who has the serialized *names*."""
        by_class = [_read(getattr(module, table, {}), cls) for module, table in _BY_CLASS]
        serialized: Any = by_class[1]
        known = {*names} | ({serialized.serialized_type_name} if serialized is not _ABSENT else set())
        return Entry(
            by_class=by_class,
            by_name={name: _read(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE, name) for name in sorted(known)},
            pending=[(at, found) for at, found in enumerate(_pending()) if found[0][0] is cls],
            cxx=_optree_entry(cls),
        )

    def registered_classes(self) -> list[type]:
        """List the classes that are pytree nodes."""
        return [cls for cls in list(pytree.SUPPORTED_NODES) if isinstance(cls, type)]

    def owner_of_name(self, name: str) -> type | None:
        """Give the class that torch has under a serialized name, or None."""
        found: type | None = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
        return found

    def install(self, node: NodeSpec) -> Entry:
        """Make *node* the registration of its class, in place of any other, and give what torch then holds.

        An existing definition is overwritten, never taken out first: what flattens in other threads meanwhile finds
        one or the other.
        """
        held = self.look_up(node.cls, node.name)
        functions = (node.flatten, node.unflatten)
        words = {
            "serialized_type_name": node.name,
            "to_dumpable_context": node.dump,
            "from_dumpable_context": node.load,
        }
        with pytree._NODE_REGISTRY_LOCK:
            self._restore_cxx(node.cls, Entry(), held, held)
            pytree.SUPPORTED_SERIALIZED_TYPES[node.cls] = pytree._SerializeNodeDef(
                node.cls, node.name, node.dump, node.load
            )
            for name, owner in held.by_name.items():
                if owner is node.cls:
                    _write(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE, name, _ABSENT)
            pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[node.name] = node.cls
            pytree.SUPPORTED_NODES[node.cls] = pytree.NodeDef(node.cls, *functions, self._flatten_with_keys(node))
            for module, table in _BY_CLASS[2:]:
                _write(getattr(module, table, {}), node.cls, _ABSENT)
            self.register_fx_spec(node)
            if _cxx_is_imported():
                _optree_add(node.cls, node.flatten, lambda context, leaves: node.unflatten(leaves, context))
            elif pytree._cxx_pytree_exists:
                _pending().append(((node.cls, *functions), words))
        _forget_loaded_specs()
        return self.look_up(node.cls, node.name)

    def register_fx_spec(self, node: NodeSpec) -> None:
        """Register a flatten function with ``torch.fx._pytree``: none, so that torch compares whole specs itself."""

    def restore(self, cls: type, before: Entry, installed: Entry) -> None:
        """Put *before* back wherever torch still holds what we *installed*; what others changed since stays."""
        now = self.look_up(cls, *before.by_name, *installed.by_name)
        with pytree._NODE_REGISTRY_LOCK:
            for (module, table), ours, current, earlier in zip(
                _BY_CLASS, installed.by_class, now.by_class, before.by_class, strict=True
            ):
                if current is ours:
                    _write(getattr(module, table, {}), cls, earlier)
            for name, earlier in before.by_name.items():
                if now.by_name[name] is installed.by_name.get(name, _ABSENT):
                    _write(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE, name, earlier)
            self._restore_cxx(cls, before, installed, now)
        _forget_loaded_specs()

    def _restore_cxx(self, cls: type, before: Entry, installed: Entry, now: Entry) -> None:
        ours = [entry for _, entry in installed.pending]
        pending = _pending()
        pending[:] = [entry for entry in pending if not any(entry is mine for mine in ours)]
        if not _cxx_is_imported():
            for at, entry in before.pending:
                pending.insert(at, entry)
            return
        if now.cxx is not None:
            if installed.cxx is None and not _is_made_of(now.cxx, ours):
                return
            if installed.cxx is not None and now.cxx.flatten_func is not installed.cxx.flatten_func:
                return
            _optree_remove(cls)
        if before.cxx is not None:
            _optree_add(cls, before.cxx.flatten_func, before.cxx.unflatten_func)
        else:  # what was pending then is what torch would have registered when it imported optree since
            for _, ((_, flatten, unflatten), _) in before.pending:
                _optree_add(cls, flatten, lambda context, leaves, back=unflatten: back(leaves, context))

    def example_tensors(self, count: int) -> list[torch.Tensor]:
        """Make small keys or values: (batch, heads, length, head size)."""
        return [torch.full((2, 1, 3, 2), float(index)) for index in range(count)]

    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Flatten with whatever is registered at the moment: the leaves and the spec."""
        return pytree.tree_flatten(tree)

    def unflatten(self, leaves: list[Any], spec: Any) -> Any:
        """Rebuild with whatever is registered at the moment."""
        return pytree.tree_unflatten(leaves, spec)

    def dumps(self, spec: Any) -> str:
        """Write a spec as text."""
        text: str = pytree.treespec_dumps(spec)
        return text

    def loads(self, text: str) -> Any:
        """Read a spec."""
        return pytree.treespec_loads(text)

    def flatten_as_exported(self, tree: Any, spec: Any) -> list[Any]:
        """Flatten as the code of an exported module does."""
        return list(fx_pytree.tree_flatten_spec(tree, spec))

    def _flatten_with_keys(self, node: NodeSpec) -> Any:
        """Derive the keyed flatten from the plain one, so that the two cannot disagree."""

        def flatten_with_keys(cache: Any) -> tuple[list[tuple[Any, Any]], _layout.Context]:
            children, context = node.flatten(cache)
            names = node.child_names(context)
            return [(pytree.MappingKey(name), child) for name, child in zip(names, children, strict=True)], context

        return flatten_with_keys

    def traceable_modules(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Make the modules of *model* such that export can trace them; they are."""
        return nullcontext()

    def traceable_masks(self, transformers: TransformersAdapter) -> AbstractContextManager[None]:
        """Make the attention masks of transformers such that export can trace them; they are."""
        return nullcontext()

    def prepare_to_load(self) -> None:
        """Import the operators that saved programs of transformers models use; torch does."""


def _read(table: Any, key: object) -> object:
    if isinstance(table, set):
        return key if key in table else _ABSENT
    return table.get(key, _ABSENT)


def _write(table: Any, key: object, value: object) -> None:
    if isinstance(table, set):
        table.discard(key) if value is _ABSENT else table.add(key)
    elif value is _ABSENT:
        table.pop(key, None)
    else:
        table[key] = value


def _forget_loaded_specs() -> None:
    """Empty the cache of `treespec_loads`, which would go on answering with the earlier registration."""
    clear = getattr(pytree.treespec_loads, "cache_clear", None)
    if clear is not None:
        clear()


def _pending() -> list[Any]:
    """Give the registrations that torch will make known to optree when it imports it."""
    pending: list[Any] = pytree._cxx_pytree_pending_imports
    return pending


def _cxx_is_imported() -> bool:
    return bool(pytree._cxx_pytree_imported) and "torch.utils._cxx_pytree" in sys.modules


def _optree_entry(cls: type) -> Any:
    if not _cxx_is_imported():
        return None
    import optree

    found = optree.register_pytree_node.get(cls, namespace="torch")
    # optree falls back to what is registered for every namespace, which is not for torch to take out.
    return found if found is not None and found.namespace == "torch" else None


def _is_made_of(cxx: Any, pending: list[Any]) -> bool:
    """Tell whether an entry of optree is one that was pending when torch imported optree."""
    return any(cxx.flatten_func is flatten for (_, flatten, _), _ in pending)


def _optree_remove(cls: type) -> None:
    import optree

    optree.unregister_pytree_node(cls, namespace="torch")


def _optree_add(cls: type, flatten: Any, unflatten: Any) -> None:
    import optree

    optree.register_pytree_node(cls, flatten, unflatten, namespace="torch")
