"""Looks names up in an SGLang source tree by parsing it: nothing is imported, any version can be asked."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


def installed_root() -> Path | None:
    """The folder of the installed `sglang` package, found without importing it."""
    spec = importlib.util.find_spec("sglang")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return Path(folders[0]) if folders else None


@dataclass
class SourceTree:
    """The package folder `root` (the one that holds `srt/`) of some SGLang."""

    root: Path
    _parsed: dict[str, ast.Module | None] = field(default_factory=dict)

    def version(self) -> str:
        """As the package states it; "unknown" where a checkout was never built."""
        tree = self._module("sglang._version")
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                if names & {"__version__", "version"} and isinstance(node.value.value, str):
                    return node.value.value
        return "unknown"

    def find(self, module: str, name: str) -> ast.stmt | None:
        """The definition of `name` ("function", "Class" or "Class.member"), through re-exports and bases."""
        head, _, member = name.partition(".")
        found, module = self._top_level(module, head)
        if found is None or not member:
            return found
        return self._member(module, found, member)

    def signature(self, definition: ast.stmt) -> str | None:
        """Parameter names as they are declared, without defaults and types; None for what is not called."""
        if isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return _parameters(definition.args)
        return None

    def server_args_fields(self) -> set[str]:
        """The fields of `ServerArgs`, which SGLang keeps in a folder of namespaces or in the class itself."""
        fields: set[str] = set()
        folder = self.root / "srt" / "arg_groups" / "fields"
        modules = [f"sglang.srt.arg_groups.fields.{file.stem}" for file in sorted(folder.glob("*.py"))]
        for name in [*modules, "sglang.srt.server_args"]:
            tree = self._module(name)
            for statement in tree.body if tree else ():
                if isinstance(statement, ast.ClassDef):
                    fields.update(_annotated(statement))
        return fields

    def _module(self, module: str) -> ast.Module | None:
        if module not in self._parsed:
            path = self.root.joinpath(*module.split(".")[1:])
            file = next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)
            self._parsed[module] = ast.parse(file.read_text()) if file else None
        return self._parsed[module]

    def _top_level(
        self, module: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> tuple[ast.stmt | None, str]:
        if (module, name) in seen:  # modules that import from each other
            return None, module
        tree = self._module(module)
        nodes = [node for node in _statements(tree.body if tree else []) if _binds(node, name)]
        # A definition wins over an assignment: decorators and struct builders rebind the same name.
        for node in sorted(nodes, key=_rank):
            if not isinstance(node, ast.ImportFrom):
                return node, module
            source, original = self._imported(node, name, module)
            if not source.startswith("sglang") or self._module(f"{source}.{original}") is not None:
                return node, module  # a module, or a name that SGLang takes from elsewhere
            found, owner = self._top_level(source, original, seen | {(module, name)})
            if found is not None:
                return found, owner
        return None, module

    def _imported(self, node: ast.ImportFrom, name: str, module: str) -> tuple[str, str]:
        original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        if not node.level:
            return node.module or "", original
        parts = module.split(".")
        is_package = self.root.joinpath(*parts[1:]).is_dir()
        parts = parts[: len(parts) - node.level + is_package]
        return ".".join([*parts, *([node.module] if node.module else [])]), original

    def _member(self, module: str, owner: ast.stmt, member: str) -> ast.stmt | None:
        if not isinstance(owner, ast.ClassDef):
            return None
        for node in _statements(owner.body):
            if _binds(node, member):
                return node
        if any(_sets_on_self(node, member) for node in ast.walk(owner)):
            return ast.Pass()
        for base in owner.bases:
            if isinstance(base, ast.Name):
                parent, parent_module = self._top_level(module, base.id)
                found = self._member(parent_module, parent, member) if parent else None
                if found is not None:
                    return found
        return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    # Names are also bound below `if TYPE_CHECKING`, `try: import` and the like.
    for node in body:
        yield node
        for attribute in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                for child in getattr(node, attribute, []):
                    yield from _statements(child.body if isinstance(child, ast.ExceptHandler) else [child])


def _rank(node: ast.stmt) -> int:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return 0
    return 1 if isinstance(node, ast.ImportFrom) else 2


def _binds(node: ast.stmt, name: str) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == name
    if isinstance(node, ast.ImportFrom):
        return any((alias.asname or alias.name) == name for alias in node.names)
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _sets_on_self(node: ast.AST, member: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) == ("self", member)
    )


def _annotated(owner: ast.ClassDef) -> Iterator[str]:
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _parameters(arguments: ast.arguments) -> str:
    names = [argument.arg for argument in arguments.posonlyargs]
    names += ["/"] if names else []
    names += [argument.arg for argument in arguments.args]
    if arguments.vararg:
        names.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        names.append("*")
    names += [argument.arg for argument in arguments.kwonlyargs]
    names += ["**" + arguments.kwarg.arg] if arguments.kwarg else []
    return ", ".join(names)
