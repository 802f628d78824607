"""Who may import whom: the rules that keep the layers apart."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STDLIB = frozenset(sys.stdlib_module_names)
PURE_LIBRARIES = frozenset({"orjson", "msgspec"})
PURE = {
    "handlers/aep": ("handlers.aep", "handlers.errors"),
    "handlers/mapping": ("handlers.mapping", "handlers.aep", "handlers.errors"),
    "handlers/lifecycle": (
        "handlers.lifecycle",
        "handlers.mapping.moments",
        "handlers.aep",
        "handlers.errors",
    ),
}
# what waits, speaks to another machine or asks for the time or for chance has no place in a pure package
IMPURE = frozenset(
    {
        "asyncio", "concurrent", "ctypes", "http", "logging", "multiprocessing", "os", "pathlib", "queue",
        "random", "secrets", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile",
        "threading", "time", "urllib.request", "uuid",
    }
)  # fmt: skip

# `_socket` and the like are the interpreter's own extension modules, without the Python around them
BUILT_IN = frozenset(sys.builtin_module_names) | {"nt", "posix", "_socket", "_frozen_importlib_external"}
# https, and a reply that must be read exactly: seldom needed, and loaded only then
RARE = frozenset({"socket", "ssl", "json"})


def nodes(node: ast.AST, inside_functions: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if inside_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from nodes(child, inside_functions)


def imports(path: Path, root: Path = ROOT, *, inside_functions: bool = True) -> Iterator[str]:
    """The dotted names a module imports, `from a import b` as `a.b`."""
    for node in nodes(ast.parse(path.read_text(encoding="utf-8")), inside_functions):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                package = path.relative_to(root).parent.parts
                module = ".".join([*package[: len(package) - node.level + 1], *filter(None, [module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


PURE_MODULES = [(package, path) for package in PURE for path in modules(package)]


@pytest.mark.parametrize(("package", "path"), PURE_MODULES, ids=names([path for _, path in PURE_MODULES]))
def test_pure_packages_import_nothing_that_acts(package: str, path: Path) -> None:
    for name in imports(path):
        top = name.partition(".")[0]
        allowed = (
            under(name, *PURE[package])
            or top in PURE_LIBRARIES
            or (top in STDLIB and not under(name, *IMPURE))
        )
        assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_state_knows_nothing_of_handlers() -> None:
    for path in modules("state"):
        for name in imports(path):
            assert not under(name, "handlers", "deploy", "tests"), f"{path.relative_to(ROOT)} imports {name}"


def test_handlers_know_nothing_of_what_runs_outside_them() -> None:
    for path in modules("handlers"):
        for name in imports(path):
            assert not under(name, "deploy", "tests"), f"{path.relative_to(ROOT)} imports {name}"


def test_the_shim_imports_only_what_the_interpreter_is_built_of() -> None:
    for path in modules("deploy/shim"):
        for name in imports(path, inside_functions=False):
            assert name in BUILT_IN, f"{path.relative_to(ROOT)} imports {name}"
        lazy = RARE if path.name == "exchange.py" else frozenset[str]()
        for name in imports(path):
            assert name.partition(".")[0] in BUILT_IN | lazy, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from . import levels", "handlers.aep.levels"),
        ("from ..mapping.moments import Draft", "handlers.mapping.moments.Draft"),
        ("def f():\n    import socket", "socket"),
    ],
)
def test_the_rules_see_relative_and_hidden_imports(source: str, expected: str, tmp_path: Path) -> None:
    package = tmp_path / "handlers" / "aep"
    package.mkdir(parents=True)
    module = package / "module.py"
    module.write_text(source)
    assert list(imports(module, tmp_path)) == [expected]
