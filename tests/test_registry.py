"""Registration and undo: exact inverses, owners, and errors that change nothing. Each test in a fresh process.

`tables` is everything that torch and optree hold about pytree nodes, whole.
"""

from __future__ import annotations

import pytest

from tests.support import OPTREE, run_python

PRELUDE = """
import json, sys, warnings
import torch, torch.utils._pytree as pytree, torch.fx._pytree as fx_pytree
import cachetree
from cachetree import AlreadyRegisteredError, OldTorchWarning, UnsupportedCacheError
warnings.simplefilter("ignore", OldTorchWarning)
from transformers import cache_utils
from transformers.cache_utils import DynamicCache, QuantizedCache

def upstream():
    from transformers.integrations.executorch import register_dynamic_cache_export_support
    register_dynamic_cache_export_support()

def tables():
    found = {
        "nodes": dict(pytree.SUPPORTED_NODES),
        "serialized": dict(pytree.SUPPORTED_SERIALIZED_TYPES),
        "names": dict(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE),
        "constants": set(getattr(pytree, "CONSTANT_NODES", ())),
        "fx": dict(fx_pytree.SUPPORTED_NODES),
        "fx exact": dict(fx_pytree.SUPPORTED_NODES_EXACT_MATCH),
        "pending": list(pytree._cxx_pytree_pending_imports),
    }
    if "torch.utils._cxx_pytree" in sys.modules:
        import optree
        entries = optree.register_pytree_node.get(namespace="torch")
        found["optree"] = {cls: (e.flatten_func, e.unflatten_func) for cls, e in entries.items()}
    return found

def foreign(cls=DynamicCache, name="foreign.DynamicCache", **more):
    pytree.register_pytree_node(cls, lambda cache: ([], None), lambda children, context: cls(),
                                serialized_type_name=name, **more)
    fx_pytree.register_pytree_flatten_spec(cls, lambda cache, spec: [], lambda cache, spec: True)

def owner(cls=DynamicCache):
    return cachetree.status()[[row.cls for row in cachetree.status()].index(cls)].owner

def two_layers():
    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.full((2, 1, 3, 2), float(layer)), torch.full((2, 1, 3, 2), float(-layer)), layer)
    return cache

def same_after_round_trip():
    cache = two_layers()
    again = pytree.tree_unflatten(*pytree.tree_flatten(cache))
    return all(torch.equal(a.keys, b.keys) for a, b in zip(cache.layers, again.layers))
"""

with_and_without_optree = pytest.mark.parametrize("optree", OPTREE)

BEFORE = {
    "nothing": "",
    "upstream": "upstream()",
    "foreign": "foreign()",
    "foreign without a name": "foreign(name=None)",
    "foreign under our name": "foreign(name='transformers.cache_utils.DynamicCache')",
}


@with_and_without_optree
@pytest.mark.parametrize("before", BEFORE)
def test_undo_is_exact(before: str, optree: str) -> None:
    assert run_python(
        f"""{PRELUDE}
{BEFORE[before]}
at_first = tables()
with cachetree.register(on_conflict="replace"):
    registered = tables()
    works = same_after_round_trip()
    assert owner() == "cachetree._layered", owner()
assert tables() == at_first, [key for key, value in tables().items() if value != at_first[key]]
print(json.dumps(works and registered != at_first))
""",
        optree=optree,
    )


@pytest.mark.parametrize("before", BEFORE)
def test_undo_is_exact_when_torch_imports_optree_in_between(before: str) -> None:
    """What it would have registered on import had we not been there is what optree holds afterwards."""
    program = """{prelude}
{before}
{register}
import torch.utils._cxx_pytree
{undo}
found = tables()
entry = found["optree"].get(DynamicCache)
leaves = torch.utils._cxx_pytree.tree_leaves(two_layers()) if entry else None
found = {{key: sorted(str(getattr(of, "__qualname__", of)) for of in value) for key, value in found.items()}}
print(json.dumps([found, len(leaves) if entry else None]))
"""
    known = [
        run_python(program.format(prelude=PRELUDE, before=BEFORE[before], register=register, undo=undo))
        for register, undo in (("", ""), ("handle = cachetree.register(on_conflict='replace')", "handle.undo()"))
    ]
    for found, _ in known:
        found.pop("pending")  # torch 2.5 leaves what it has imported in this list, where it has no effect any more
    assert known[0] == known[1]


@with_and_without_optree
def test_register_undo_register_leaves_dynamo_alive(optree: str) -> None:
    assert run_python(
        f"""{PRELUDE}
for _ in range(3):
    cachetree.register().undo()
cachetree.register()
function = torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)
assert function(torch.zeros(1)).item() == 1
try:
    import torch.utils._cxx_pytree as cxx
except ImportError:
    print(json.dumps(True))
else:
    print(json.dumps(len(cxx.tree_leaves(two_layers())) == 4))
""",
        optree=optree,
    )


def test_registered_by_two_until_the_last_is_undone() -> None:
    assert run_python(
        f"""{PRELUDE}
at_first = tables()
one, other = cachetree.register(), cachetree.register(DynamicCache)
assert other.classes == (DynamicCache,) and DynamicCache in one.classes
one.undo()
one.undo()
assert owner() == "cachetree._layered"
again = cachetree.register()
other.undo()
assert owner() == "cachetree._layered"
again.undo()
print(json.dumps(tables() == at_first))
"""
    )


def test_two_libraries_in_threads() -> None:
    assert run_python(
        f"""{PRELUDE}
import threading
at_first = tables()
failures = []
def library():
    try:
        for _ in range(100):
            with cachetree.register():
                if not same_after_round_trip():
                    raise AssertionError("lost")
    except BaseException as error:
        failures.append(repr(error))
threads = [threading.Thread(target=library) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
print(json.dumps(tables() == at_first))
"""
    )


def test_transformers_own_registration_is_superseded_and_put_back() -> None:
    found = run_python(
        f"""{PRELUDE}
upstream()
before, owners = tables(), [owner()]
old = pytree.tree_structure(two_layers())
handle = cachetree.register()
owners.append(owner())
upstream()                                     # transformers calls this whenever it exports
owners.append(owner())
rebuilt = pytree.tree_unflatten(pytree.tree_leaves(two_layers()), old)
assert [layer.keys[0, 0, 0, 0].item() for layer in rebuilt.layers] == [0, 1]
handle.undo()
owners.append(owner())
print(json.dumps([tables() == before, owners]))
"""
    )
    assert found == [
        True,
        ["transformers.integrations.executorch", *["cachetree._layered"] * 2, "transformers.integrations.executorch"],
    ]


def test_foreign_registration_is_an_error_that_names_its_owner_and_changes_nothing() -> None:
    found = run_python(
        f"""{PRELUDE}
foreign()
at_first = tables()
try:
    cachetree.register()
except AlreadyRegisteredError as error:
    message = str(error)
print(json.dumps([message, tables() == at_first]))
"""
    )
    assert found[1]
    assert "DynamicCache is already registered as a pytree node by __main__" in found[0]
    assert "on_conflict='replace'" in found[0]


def test_foreign_registration_can_be_kept() -> None:
    assert run_python(
        f"""{PRELUDE}
foreign()
at_first = tables()
class Mine(DynamicCache): pass
handle = cachetree.register(DynamicCache, Mine, on_conflict="keep")
assert handle.classes == (Mine,), handle
assert owner() == "__main__"
handle.undo()
print(json.dumps(tables() == at_first))
"""
    )


def test_what_others_change_in_between_stays() -> None:
    assert run_python(
        f"""{PRELUDE}
handle = cachetree.register()
warnings.simplefilter("ignore")
pytree._private_register_pytree_node(DynamicCache, lambda cache: ([], None), lambda children, context: DynamicCache())
theirs = pytree.SUPPORTED_NODES[DynamicCache]
handle.undo()
assert pytree.SUPPORTED_NODES[DynamicCache] is theirs
try:
    cachetree.register()
except AlreadyRegisteredError:
    print(json.dumps(True))
"""
    )


def test_registering_again_repairs_what_others_took_out() -> None:
    assert run_python(
        f"""{PRELUDE}
at_first = tables()
one = cachetree.register()
del pytree.SUPPORTED_NODES[DynamicCache]
two = cachetree.register()
assert same_after_round_trip()
one.undo(); two.undo()
print(json.dumps(tables() == at_first))
"""
    )


def test_failure_in_the_middle_leaves_nothing_behind() -> None:
    """A class whose hash fails at one point makes the registration fail there: at every point in turn.

    Without optree, whose own registration is left half done where the hash fails inside of it.
    """
    assert run_python(
        f"""{PRELUDE}
class Fails(type):
    left = None
    def __hash__(cls):
        if Fails.left is not None:
            Fails.left -= 1
            if Fails.left == 0:
                raise RuntimeError("now")
        return type.__hash__(cls)
class Odd(DynamicCache, metaclass=Fails): pass
at_first = tables()
for point in range(1, 200):
    Fails.left = point
    try:
        handle = cachetree.register(DynamicCache, Odd)
    except RuntimeError:
        Fails.left = None
        assert tables() == at_first, point
    else:
        break
Fails.left = None
assert point > 10, point
handle.undo()
print(json.dumps(tables() == at_first))
""",
        optree="absent",
    )


def test_bad_arguments_change_nothing() -> None:
    found = run_python(
        f"""{PRELUDE}
at_first = tables()
messages = []
class Stateful(DynamicCache): pass
for arguments, words in [((DynamicCache(),), {{}}), ((DynamicCache, int), {{}}), ((DynamicCache, QuantizedCache), {{}}),
                         ((DynamicCache,), {{"on_conflict": "overwrite"}}),
                         (([DynamicCache],), {{}}), (("DynamicCache",), {{}}), ((None,), {{}})]:
    try:
        cachetree.register(*arguments, **words)
    except cachetree.CachetreeError as error:
        messages.append(f"{{type(error).__name__}}: {{error}}")
    assert tables() == at_first
print(json.dumps(messages))
"""
    )
    assert found[0].startswith("UnsupportedCacheError: register() expected classes, but found DynamicCache(")
    assert found[0].endswith("pass its class: register(DynamicCache)")
    assert "but found builtins.int" in found[1]
    assert "but found transformers.cache_utils.QuantizedCache" in found[2]
    assert found[3] == (
        "InvalidArgumentError: expected on_conflict to be one of 'error', 'replace', 'keep', but found 'overwrite'"
    )
    assert "register(*classes)" in found[4]
    assert all("such as register(DynamicCache)" in message for message in found[5:])
    assert len(found) == 7


def test_two_classes_of_one_name_are_an_error() -> None:
    assert run_python(
        f"""{PRELUDE}
at_first = tables()
def local():
    class Mine(DynamicCache): pass
    return Mine
one, other = local(), local()
with cachetree.register(one):
    before = tables()
    try:
        cachetree.register(other)
    except AlreadyRegisteredError as error:
        assert "Mine" in str(error)
        assert tables() == before
print(json.dumps(tables() == at_first))
"""
    )


def test_superseding_never_leaves_a_gap() -> None:
    """What flattens meanwhile finds one registration or the other, never none."""
    assert run_python(
        f"""{PRELUDE}
import threading
upstream()
sys.setswitchinterval(1e-5)
cache, wrong, stop = two_layers(), [], threading.Event()
def flattens():
    while not stop.is_set():
        if len(pytree.tree_leaves(cache)) != 4:
            wrong.append(1)
thread = threading.Thread(target=flattens)
thread.start()
for _ in range(200):
    cachetree.register().undo()
stop.set(); thread.join()
print(json.dumps(not wrong))
"""
    )


def test_what_others_registered_in_between_comes_back_when_it_is_replaced() -> None:
    assert run_python(
        f"""{PRELUDE}
one = cachetree.register()
del pytree.SUPPORTED_NODES[DynamicCache]
pytree._cxx_pytree_pending_imports[:] = [e for e in pytree._cxx_pytree_pending_imports if e[0][0] is not DynamicCache]
if "torch.utils._cxx_pytree" in sys.modules:
    import optree
    optree.unregister_pytree_node(DynamicCache, namespace="torch")
foreign()
theirs = pytree.SUPPORTED_NODES[DynamicCache]
two = cachetree.register(on_conflict="replace")
assert same_after_round_trip()
two.undo(); one.undo()
print(json.dumps(pytree.SUPPORTED_NODES[DynamicCache] is theirs))
"""
    )


def test_a_registration_for_every_namespace_of_optree_is_not_torchs() -> None:
    assert run_python(
        f"""{PRELUDE}
import optree, torch.utils._cxx_pytree
from optree.registry import __GLOBAL_NAMESPACE as everywhere
optree.register_pytree_node(DynamicCache, lambda c: ((), None), lambda context, leaves: None, namespace=everywhere)
at_first = tables()
with cachetree.register():
    assert same_after_round_trip()
print(json.dumps(tables() == at_first))
"""
    )


def test_load_that_fails_leaves_nothing_registered() -> None:
    assert run_python(
        f"""{PRELUDE}
import transformers.modeling_outputs
at_first = tables()
for path in ("/nowhere.pt2", __import__("io").BytesIO(b"no archive")):
    try:
        cachetree.load(path)
    except Exception:
        assert tables() == at_first
    else:
        raise AssertionError(f"{{path}} loaded")
print(json.dumps(True))
"""
    )


def test_torch_below_the_floor_is_refused_and_nothing_changes() -> None:
    found = run_python(
        f"""{PRELUDE}
at_first = tables()
torch.__version__ = torch.torch_version.TorchVersion("2.4.1+cpu")
try:
    cachetree.register()
except cachetree.UnsupportedTorchError as error:
    assert isinstance(error, ImportError)
    print(json.dumps([str(error), tables() == at_first]))
"""
    )
    assert found[0].startswith("cachetree supports torch 2.5 and later")
    assert "torch 2.4.1+cpu is installed" in found[0]
    assert found[1]


def test_old_torch_warns_once_and_can_be_silenced() -> None:
    found = run_python(
        """
        import json, warnings
        import cachetree, torch
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cachetree.register(); cachetree.register()
        ours = [w for w in caught if issubclass(w.category, cachetree.OldTorchWarning)]
        print(json.dumps([cachetree.environment().torch, [str(w.message) for w in ours], [w.filename for w in ours]]))
        """
    )
    old = found[0].startswith("2.5.")
    assert len(found[1]) == (1 if old else 0)
    assert all(found[0] in message and "Dim.DYNAMIC" in message for message in found[1])
    assert all(name == "<string>" for name in found[2])  # the caller's line, not one of ours


def test_old_torch_warning_as_an_error_changes_nothing() -> None:
    assert run_python(
        f"""{PRELUDE}
at_first = tables()
warnings.simplefilter("error", OldTorchWarning)
try:
    cachetree.register()
    raised = False
except OldTorchWarning:
    raised = True
    assert tables() == at_first
print(json.dumps(raised == cachetree.environment().torch.startswith("2.5.")))
"""
    )


def test_specs_loaded_before_do_not_outlive_undo() -> None:
    assert run_python(
        f"""{PRELUDE}
with cachetree.register():
    text = pytree.treespec_dumps(pytree.tree_structure(two_layers()))
    pytree.treespec_loads(text)
try:
    pytree.treespec_loads(text)
except NotImplementedError:
    print(json.dumps(True))
"""
    )


def test_a_flatten_function_for_fx_is_there_only_where_torch_needs_it() -> None:
    assert run_python(
        f"""{PRELUDE}
upstream()
needed = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)
with cachetree.register():
    ours = fx_pytree.SUPPORTED_NODES.get(DynamicCache)
    assert (ours is not None) == needed
    if needed:
        two, spec = pytree.tree_flatten(two_layers())
        three = two_layers()
        three.update(two[0], two[0], 2)
        try:
            fx_pytree.tree_flatten_spec(three, spec)
        except cachetree.LayoutError as error:
            assert "expected context" in str(error) and "[2, 2]" in str(error) and "[3, 3]" in str(error), error
        else:
            raise AssertionError("three layers passed for two")
print(json.dumps(True))
"""
    )
