"""Follows the folder that `edgeplan run` is given, and the value read from it, through the code.

Followed are paths, bytes read from them, and instances of the package's classes that are made of
what is followed. Numbers, texts, collections and their elements are not followed, nor is what an
inference answers. What is followed walks into each function that it is an argument of, and into
each method that is called of it (a call of `self.attribute.method()` is a method's own work, and no
way on). The walk goes by the order of the code and by annotations, through imports inside
functions, too. It goes through each function once, but a call of it counts again. A *stay* is in
one file, until a function of another file is entered.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_PATH, _RAW = "path", "bytes read"
_PATHS, _BYTES = {"Path", "PathLike", "str", "_Path"}, {"bytes", "Any"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Tree:
    """The modules of a package: their imports, classes and functions."""

    def __init__(self, package: Path) -> None:
        self.package, self.paths = package, dict[str, Path]()
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            self.paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self.trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.paths.items()}
        self.names: dict[str, dict[str, str]] = defaultdict(dict)  # of modules: what a name stands for
        self.classes: dict[str, ast.ClassDef] = {}
        self.functions: dict[str, Function] = {}
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        self.names[module].setdefault(alias.asname or alias.name, f"{node.module}.{alias.name}")
            self._define(module, tree.body)

    def _define(self, place: str, body: Iterable[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self.classes[f"{place}.{node.name}"] = node
                self._define(f"{place}.{node.name}", node.body)
            elif isinstance(node, Function):
                self.functions[f"{place}.{node.name}"] = node
            if isinstance(node, ast.ClassDef | Function) and place in self.trees:
                self.names[place][node.name] = f"{place}.{node.name}"

    def found(self, name: str) -> str:
        """The whole name of what a name stands for that a module may hand on from another."""
        place, _, last = name.rpartition(".")
        further = self.names.get(place, {}).get(last, name)
        return name if further == name else self.found(further)

    def module(self, name: str) -> str:
        """The module that a function or class is in."""
        while name not in self.paths:
            name = name.rpartition(".")[0]
        return name

    def imports(self, module: str, *, late: bool = True) -> Iterator[str]:
        """Modules of the package that a module imports; without `late`, not those inside functions."""
        waiting: list[ast.AST] = [self.trees[module]]
        lazy = self.paths[module].stem == "__init__"  # names that it hands on when they are asked for
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and lazy:
                continue
            if isinstance(node, Function) and not late:
                continue
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    yield name if name in self.paths else node.module
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            waiting += ast.iter_child_nodes(node)

    def inside_functions(self) -> list[str]:
        """Imports inside functions, as MODULE:LINE."""
        kinds = (ast.Import, ast.ImportFrom)
        functions = [
            (module, node) for module, tree in self.trees.items() for node in ast.walk(tree) if isinstance(node, Function)
        ]
        found = {(module, n.lineno) for module, function in functions for n in ast.walk(function) if isinstance(n, kinds)}
        return [f"{module}:{line}" for module, line in sorted(found)]


class Value(NamedTuple):
    """An expression's type: a class of the package by its whole name, `_PATH`, `_RAW` or None; and whether it is followed."""

    type: str | None = None
    followed: bool = False
    parts: tuple[Value, ...] = ()  # of a tuple


_OF_CLASS = Value("of the class that was handed over", followed=True)


class Walk(NamedTuple):
    """The files that a walk stayed in, one after the other, and the functions that it entered."""

    stays: list[str]
    functions: list[str]

    def figures(self) -> dict[str, int]:
        """Count stays, different files, returns to a file of an earlier stay, and functions."""
        files = len(set(self.stays))
        return {"stays": len(self.stays), "files": files, "returns": len(self.stays) - files, "functions": len(self.functions)}


class _Walker:
    """One walk through a tree."""

    def __init__(self, tree: Tree, left_out: Sequence[str], answers: Iterable[str]) -> None:
        self.tree, self.left_out, self.answers, self.walk = tree, left_out, set(answers), Walk([], [])
        self.attributes: dict[tuple[str, str], Value] = {}  # of instances, as their methods set them

    def enter(self, name: str, given: Sequence[Value], named: Mapping[str, Value], owner: Value | None = None) -> None:
        """Stay in a function that is called with what is followed; an owner is its first argument."""
        if any(f"{name}.".startswith(f"{other}.") for other in self.left_out):
            return
        function, file = self.tree.functions[name], self.tree.module(name)
        if self.walk.stays[-1:] != [file]:
            self.walk.stays.append(file)
        if name in self.walk.functions:
            return
        self.walk.functions.append(name)
        values = dict(self.parameters(name))
        arguments = [*function.args.posonlyargs, *function.args.args]
        passed = {**dict(zip([a.arg for a in arguments], ([owner] if owner else []) + list(given), strict=False)), **named}
        for key, value in passed.items():
            values[key] = value if value.type or key not in values else values[key]._replace(followed=value.followed)
        _Body(self, name, values).run(function.body)

    def parameters(self, name: str) -> Iterator[tuple[str, Value]]:
        """Parameters of a function, by their annotations, none followed."""
        arguments = self.tree.functions[name].args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            yield argument.arg, self.annotated(argument.annotation, self.tree.module(name))

    def annotated(self, node: ast.expr | None, module: str, owner: str | None = None) -> Value:
        """The type that an annotation names: of a union the first, of an iterator or context its item."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.BinOp):
            found = self.annotated(node.left, module, owner)
            return found if found.type else self.annotated(node.right, module, owner)
        if isinstance(node, ast.Subscript):
            outer, inner = ast.unparse(node.value), node.slice
            if outer == "tuple" and isinstance(inner, ast.Tuple) and not isinstance(inner.elts[-1], ast.Constant):
                return Value(None, parts=tuple(self.annotated(part, module, owner) for part in inner.elts))
            context = outer in {"Iterator", "Generator", "AbstractContextManager"}
            return (
                self.annotated(inner.elts[0] if isinstance(inner, ast.Tuple) else inner, module, owner) if context else Value()
            )
        name = ast.unparse(node) if node else ""
        if name == "Self":
            return Value(owner)
        whole = self.tree.found(f"{module}.{name}")
        return Value(whole if whole in self.tree.classes else _PATH if name in _PATHS else _RAW if name in _BYTES else None)

    def bases(self, name: str) -> Iterator[str]:
        """A class and those that it is derived from."""
        yield name
        for base in self.tree.classes[name].bases:
            whole = self.tree.found(f"{self.tree.module(name)}.{ast.unparse(base).partition('[')[0]}")
            if whole in self.tree.classes:
                yield from self.bases(whole)

    def methods(self, owner: str, name: str) -> list[str]:
        """List the functions that a method stands for: its own, or if that only raises or says a type, those of subclasses."""
        own = next((f"{base}.{name}" for base in self.bases(owner) if f"{base}.{name}" in self.tree.functions), "")
        if own and not _abstract(self.tree.functions[own]):
            return [own]
        derived = [name_ for name_ in self.tree.classes if owner in list(self.bases(name_))[1:]] if own else []
        return [f"{name_}.{name}" for name_ in derived if f"{name_}.{name}" in self.tree.functions]

    def attribute(self, owner: Value, name: str) -> Value:
        """An attribute of an instance: followed if what it was set to is, or if it is a field of a followed value."""
        if owner.type in (None, _PATH, _RAW):
            return Value(owner.type, owner.followed)
        for base in self.bases(owner.type):
            if (base, name) in self.attributes:
                return self.attributes[base, name]
            for node in self.tree.classes[base].body:
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
                    return self.annotated(node.annotation, self.tree.module(base), base)._replace(followed=owner.followed)
        return Value()


class _Body:
    """The values of one function as the walk goes through it."""

    def __init__(self, walker: _Walker, name: str, values: dict[str, Value]) -> None:
        self.walker, self.tree, self.module, self.values = walker, walker.tree, walker.tree.module(name), values
        place = name.rpartition(".")[0]
        self.owner = place if place in self.tree.classes else None
        imports = (node for node in ast.walk(self.tree.functions[name]) if isinstance(node, ast.ImportFrom))
        self.imported = {a.asname or a.name: f"{node.module}.{a.name}" for node in imports for a in node.names}

    def named(self, name: str) -> str:
        """The whole name of what a name stands for here, a dotted one included."""
        first, dot, rest = name.partition(".")
        return self.tree.found(self.tree.found(self.imported.get(first, f"{self.module}.{first}")) + dot + rest)

    def run(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.AST) -> None:
        """Evaluate a statement's expressions in the order of the code, and set the names that it assigns."""
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            value = self.value(node.value) if node.value else Value()
            if isinstance(node, ast.AnnAssign) and not value.type:
                value = self.walker.annotated(node.annotation, self.module, self.owner)._replace(followed=value.followed)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.assign(target, value)
        elif isinstance(node, ast.withitem):
            value = self.value(node.context_expr)
            if node.optional_vars is not None:
                self.assign(node.optional_vars, value)
        elif isinstance(node, ast.expr):
            self.value(node)
        elif not isinstance(node, Function | ast.ClassDef | ast.Raise):  # an error tells of it, and passes it nowhere
            for child in ast.iter_child_nodes(node):
                self.statement(child)

    def assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.values[target.id] = value
        elif isinstance(target, ast.Tuple):
            for k, part in enumerate(target.elts):
                self.assign(part, value.parts[k] if k < len(value.parts) else Value())
        elif isinstance(target, ast.Attribute) and self.value(target.value).type not in (None, _PATH, _RAW):
            owner = self.value(target.value).type
            self.walker.attributes.setdefault((str(owner), target.attr), value)

    def value(self, node: ast.expr) -> Value:  # noqa: PLR0911  a line a kind of expression
        """Walk through an expression, and say what it is."""
        if isinstance(node, ast.Name):
            return self.values.get(node.id, Value())
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            own = not ast.unparse(node.value).startswith("self.")
            if (
                own
                and owner.followed
                and owner.type in self.tree.classes
                and (methods := self.walker.methods(owner.type, node.attr))
            ):
                return self.entered(methods, [], {}, owner)  # a property, or a method that another thread may call
            return self.walker.attribute(owner, node.attr)
        if isinstance(node, ast.Tuple):
            return Value(parts=tuple(self.value(part) for part in node.elts))
        if isinstance(node, ast.NamedExpr):
            self.statement(node)
            return self.value(node.target)
        found = [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                self.statement(child)
        kept = isinstance(node, ast.BinOp | ast.IfExp | ast.BoolOp | ast.Await | ast.Starred) or (
            isinstance(node, ast.Subscript) and found[0].type == _RAW
        )
        return next((value for value in found if value.followed), Value()) if kept else Value()

    def call(self, node: ast.Call) -> Value:
        """Walk into what is called; a function that is handed a class, and says no type that is known, returns one of it."""
        found = self.called(node)
        if found != _OF_CLASS:
            return found
        handed = [self.named(ast.unparse(argument)) for argument in node.args]
        return next((Value(name, followed=True) for name in handed if name in self.tree.classes), Value())

    def called(self, node: ast.Call) -> Value:
        given = [self.value(argument) for argument in node.args]
        named = {keyword.arg or "**": self.value(keyword.value) for keyword in node.keywords}
        passed = [value for value in (*given, *named.values()) if value.followed]
        name = ast.unparse(node.func)
        whole = self.owner if name == "cls" and self.owner else self.named(name)
        if whole in self.tree.functions:
            return self.entered([whole], given, named) if passed else self.returned(whole)
        if whole in self.tree.classes:
            if passed and (made := self.walker.methods(whole, "__init__")):
                self.entered(made, given, named, Value(whole, followed=True))
            return Value(whole, bool(passed))
        owner = Value()
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if ast.unparse(node.func.value).startswith("self."):
                owner = owner._replace(followed=False)
            kind = owner.type or self.named(ast.unparse(node.func.value))
            if kind in self.tree.classes:
                return self.method(kind, node.func.attr, owner, given, named)
        passed += [owner] if owner.followed else []
        if name in ("len", "int", "float", "bool", "isinstance") or not all(value.type in (_PATH, _RAW) for value in passed):
            return next(iter(passed), Value()) if name == "replace" else Value()
        paths = name in _PATHS or ".with_" in name
        return Value(_PATH if paths else _RAW, followed=True) if passed else Value()

    def method(self, kind: str, name: str, owner: Value, given: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """Walk into a method of a class, which is called of an instance or of the class."""
        methods, passed = self.walker.methods(kind, name), any(value.followed for value in (*given, *named.values()))
        if not methods:  # what the class inherits from elsewhere, as pydantic's `model_validate_json`
            return Value(None if owner.type else kind, passed) if passed else Value()
        if not passed and not owner.followed:
            return self.returned(methods[0], kind)
        if not owner.type and "classmethod" in _decorators(self.tree.functions[methods[0]]):
            owner = Value(kind)
        return self.entered(methods, given, named, owner if owner.type else None, kind)

    def entered(
        self,
        names: Sequence[str],
        given: Sequence[Value],
        named: Mapping[str, Value],
        owner: Value | None = None,
        kind: str | None = None,
    ) -> Value:
        for name in names:
            self.walker.enter(name, given, named, owner)
        found = self.returned(names[0], kind or (owner.type if owner else None))
        function = self.tree.functions[names[0]]
        if function.returns and any(_kind(a) == f"type[{ast.unparse(function.returns)}]" for a in function.args.args):
            return _OF_CLASS
        answer = (found.type or "").rpartition(".")[2] in self.walker.answers
        parts = tuple(part._replace(followed=bool(part.type)) for part in found.parts)
        return found._replace(followed=bool(found.type) and not answer, parts=parts)

    def returned(self, name: str, kind: str | None = None) -> Value:
        return self.walker.annotated(self.tree.functions[name].returns, self.tree.module(name), kind or name.rpartition(".")[0])


def _kind(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation) if argument.annotation else ""


def _decorators(function: Function) -> set[str]:
    return {ast.unparse(node) for node in function.decorator_list}


def _abstract(function: Function) -> bool:
    last = ast.unparse(function.body[-1])
    return "abstractmethod" in " ".join(_decorators(function)) or last in {"...", "raise NotImplementedError"}


def walk(tree: Tree, command: str, folder: str, left_out: Sequence[str] = (), answers: Iterable[str] = ()) -> Walk:
    """Follow a parameter from the function that takes it.

    Args:
        tree: the package.
        command: the function's whole name.
        folder: the parameter.
        left_out: functions, classes and modules that are not entered, with all in them.
        answers: classes whose instances are not followed.
    """
    walker = _Walker(tree, left_out, answers)
    walker.enter(command, [], {folder: Value(_PATH, followed=True)})
    return walker.walk
