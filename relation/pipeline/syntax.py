"""What Python's syntax trees say of names: bound, stored, imported, called, marked."""

import ast
import re
from collections.abc import Iterator

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSION = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_SCOPED = (*FUNCTION, ast.ClassDef, ast.Lambda, *COMPREHENSION)
_NAMING = (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_KEY = re.compile(r"[\w.-]+")
_MARK = "tells"
# Decorators after which a function is reached by its own name alone. Any other may hand it
# elsewhere, as @impl(NAME) does, so such a function counts with its module.
_PLAIN = {
    _MARK, "assume_constant_result", "cache", "cached_property", "classmethod",
    "constexpr_function", "contextmanager", "custom_op", "dataclass", "disable", "inference_mode",
    "jit", "lru_cache", "no_grad", "property", "singledispatch", "staticmethod",
}  # fmt: skip


def is_marked(node: ast.stmt) -> bool:
    """Whether a definition is marked `@tells`."""
    return any(last_name(d) == _MARK for d in getattr(node, "decorator_list", ()))


def imports_in(node: ast.stmt) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports of a top-level statement that bind names of the module."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    elif not isinstance(node, (*FUNCTION, ast.ClassDef)):
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.stmt | ast.ExceptHandler):
                yield from imports_in(inner)


def is_text(node: ast.AST) -> bool:
    """A docstring, or a string between statements."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_aside(node: ast.stmt) -> bool:
    """A block that never runs when the module is imported."""
    if not isinstance(node, ast.If):
        return False
    test = ast.dump(node.test)
    return "TYPE_CHECKING" in test or "__main__" in test


def is_effect(node: ast.stmt) -> bool:
    """Whether a statement does something that no name of its own leads to."""
    if isinstance(node, (*FUNCTION, ast.ClassDef)):
        return any(last_name(d) not in _PLAIN for d in node.decorator_list)
    if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
        return True
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    return not any(True for _ in bound_by(node))


def bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a top-level statement binds."""
    if isinstance(node, (*FUNCTION, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.stmt | ast.ExceptHandler):
        for inner in ast.iter_child_nodes(node):
            yield from bound_by(inner)
    elif isinstance(node, ast.Name | ast.Tuple | ast.withitem):
        yield from stored_in([node])


def stored_in(nodes: list) -> Iterator[str]:
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
                yield inner.id


def local_names(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Names that a function binds itself, so that they are none of the module's."""
    found = {argument.arg for argument in arguments_of(node.args)}
    outer: set[str] = set()
    waiting: list[ast.AST] = list(node.body) if isinstance(node.body, list) else [node.body]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, ast.Name):
            if not isinstance(inner.ctx, ast.Load):
                found.add(inner.id)
        elif isinstance(inner, _SCOPED):
            # What it binds is its own; a name that `:=` binds is taken for the module's as well.
            found.update(bound_by(inner))
        elif isinstance(inner, ast.Global | ast.Nonlocal):
            outer.update(inner.names)
        else:
            if isinstance(inner, _NAMING) and inner.name:
                found.add(inner.name)
            waiting.extend(ast.iter_child_nodes(inner))
    return found - outer


def arguments_of(arguments: ast.arguments) -> list[ast.arg]:
    a = arguments
    every = (*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg)
    return [argument for argument in every if argument is not None]


def is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def last_name(node: ast.AST) -> str | None:
    """The last name of `a.b.c` or of `a.b.c(...)`."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def first_name(node: ast.AST) -> str | None:
    """The first name of what is called, subscripted or looked up."""
    while not isinstance(node, ast.Name):
        inner = getattr(node, "func", None) or getattr(node, "value", None)
        if not isinstance(inner, ast.AST):
            return None
        node = inner
    return node.id


def names_of(node: ast.AST | None) -> list[str] | None:
    """["a", "b", "c"] of `a.b.c`, None of anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None


def entry_key(entry: ast.expr) -> str:
    """The key of a registry's entry: the strings that its call begins with."""
    words = []
    for argument in getattr(entry, "args", ()):
        value = getattr(argument, "value", None)
        if not (isinstance(value, str) and _KEY.fullmatch(value)):
            break
        words.append(value)
    return "/".join(words)
