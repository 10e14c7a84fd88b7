"""What the docstring of a public name has to say, and where it does not.

A docstring names each parameter, says what a parameter is by default if it may be left out, and names what the code
raises: itself, or in functions of torchwire that it calls. "see set_plan" and "as set_plan does" stand for what the
docstring of that one says.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator

_DEPTH = 3  # calls down
_REFERENCE = re.compile(r"\b(?:[Ss]ee|as(?: for)?) `?(?:\w+\.)*(\w+)")
_NO_PROMISE = {"AssertionError", "NotImplementedError"}


def shortcomings(package: types.ModuleType, name: str) -> list[str]:
    """What the docstring of a public name lacks, in words; of a class also those of its methods and properties."""
    value = getattr(package, name)
    if isinstance(value, str):
        return []  # has no place for a docstring
    if not inspect.getdoc(value):
        return [f"{name} has no docstring"]
    found = [] if isinstance(value, type) else list(_of_function(package, value, ""))
    if isinstance(value, type):
        found += _of_class(package, value)
    return [f"{name}: {each}" for each in found]


def _of_class(package: types.ModuleType, cls: type) -> Iterator[str]:
    doc = _doc_of(package, cls)
    if not issubclass(cls, BaseException) and isinstance(
        cls.__init__, types.FunctionType
    ):  # exceptions are made by torchwire alone
        yield from _of_parameters(inspect.signature(cls.__init__), doc)
    for name in ("__init__", "__post_init__"):
        if _is_python(vars(cls).get(name)):
            yield from _of_raises(vars(cls)[name], doc)
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not _is_python(function):
            continue
        if not function.__doc__:
            yield f"{name} has no docstring"
        else:
            yield from (f"{name}: {each}" for each in _of_function(package, function, doc))


def _of_function(package: types.ModuleType, function: types.FunctionType, doc_of_class: str) -> Iterator[str]:
    doc = _doc_of(package, function)
    yield from _of_parameters(inspect.signature(function), doc)
    yield from _of_raises(function, f"{doc}\n{doc_of_class}")


def _of_parameters(signature: inspect.Signature, doc: str) -> Iterator[str]:
    kinds = inspect.Parameter
    for name, parameter in signature.parameters.items():
        if name in ("self", "cls", "_") or parameter.kind is kinds.VAR_KEYWORD:
            continue
        if not re.search(rf"\b{name}\b", doc):
            yield f"does not name the parameter {name}"
        elif parameter.default is not kinds.empty and not re.search(r"(?i)\bdefaults?\b", _about(name, doc)):
            yield f"does not say what {name} is by default"


def _about(name: str, doc: str) -> str:
    """The paragraph "name: ..." or, with others, "name, other: ..."; where there is none, all."""
    found = re.search(rf"^(?:\w+, )*{name}(?:, \w+)*:.*(?:\n[ ]+.*)*", doc, re.MULTILINE)
    return found[0] if found else doc


def _of_raises(function: types.FunctionType, doc: str) -> Iterator[str]:
    for error in sorted(raised_by(function) - _NO_PROMISE):
        if not re.search(rf"\b{error}\b", doc):
            yield f"does not say when it raises {error}"


def _doc_of(package: types.ModuleType, value: object, known: tuple[object, ...] = ()) -> str:
    """The docstring, and those of the public names that it refers to."""
    doc = inspect.getdoc(value) or ""
    others = [getattr(package, name, None) for name in _REFERENCE.findall(doc)]
    others = [other for other in others if callable(other) and other not in known]
    return "\n".join([doc, *(_doc_of(package, other, (*known, value)) for other in others)])


def raised_by(function: types.FunctionType, depth: int = _DEPTH) -> set[str]:
    """The exceptions in raise statements of the function, and of functions of torchwire that it calls by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    names: set[str] = set()
    for node in _own_nodes(tree.body[0]):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            names.add(node.exc.func.id)
        elif isinstance(node, ast.Call) and depth > 0:
            called = _resolved(node.func, inspect.unwrap(function).__globals__)
            if called is not None:
                names |= raised_by(called, depth - 1)
    return names


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Not those of functions in it, which run later, nor those whose errors a try statement catches."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, (ast.FunctionDef, ast.Lambda)):
            continue
        yield child
        if isinstance(child, ast.Try) and child.handlers:
            for part in [*child.handlers, *child.orelse, *child.finalbody]:
                yield from _own_nodes(part)
        else:
            yield from _own_nodes(child)


def _resolved(called: ast.expr, names: dict[str, object]) -> types.FunctionType | None:
    if isinstance(called, ast.Name):
        value = names.get(called.id)
    elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        value = getattr(names.get(called.value.id), called.attr, None)
    else:
        return None
    return value if _is_python(value) and value.__module__.startswith("torchwire") else None


def _is_python(value: object) -> bool:
    return isinstance(value, types.FunctionType) and value.__code__.co_filename != "<string>"
