"""What one module defines, read from its source for the code hash: see `relation.pipeline.hashes`.

A definition is a top-level statement; a class is split into its shell (bases, fields, decorators
and methods that Python calls) and its other methods, a `Registry` into its entries.
"""

import ast
import hashlib
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from relation.pipeline import syntax

_ROOTS = ("relation", "report")
_IN_WORDS = "report"  # its words are results
_SAYING = {"print", "warnings", "logging"}  # a statement that calls one of them computes nothing
_PROSE = {"description", "summary", "help"}  # keyword arguments for people
# The methods that a base outside the project calls by itself; every method for one not listed.
_CALLED_BY: dict[str, set[str]] = {
    "Function": {"forward", "backward", "setup_context"},
    "Module": {"forward", "extra_repr"},
    **{
        name: set() for name in ("Exception", "Generic", "NamedTuple", "Protocol", "dict", "object")
    },
}
# Methods of these are called everywhere, so a mark on a method of such a name is not heeded.
_BUILTIN = {name for kind in (dict, list, set, str, bytes, Path) for name in dir(kind)}
_REFERENCE = re.compile(rf"(?:{'|'.join(_ROOTS)})(?:\.\w+)+:\w+")

Reference = str  # "module:name.attribute", the module alone before an empty rest


@dataclass(eq=False)
class Definition:
    """One definition: what it says, as a digest, and what it rests on.

    names: what it binds, none for a bare effect; a part's is "Class.method" or "REGISTRY/key".
    refers: pairs of a name as written and the project's thing that it stands for. words:
    attributes and strings in it, which may be names of methods. files: paths that it opens.
    parts: a class's methods or a registry's entries. called: the methods that bases outside the
    project call, None for all. attached: the definition of the module that this effect changes.
    effect: whether it counts as soon as its module does.
    """

    module: str
    names: list[str]
    digest: str = ""
    refers: list[tuple[str, Reference]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    kind: str = ""  # "class", "registry"
    parts: list["Definition"] = field(default_factory=list)
    bases: list[Reference] = field(default_factory=list)
    called: list[str] | None = field(default_factory=list)
    attached: str | None = None
    effect: bool = False
    tells: bool = False


@dataclass
class Module:
    """A module's definitions and, by name, what its imports bind."""

    definitions: list[Definition]
    imports: dict[str, Reference]

    def as_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict) -> "Module":
        return cls([_definition(d) for d in values["definitions"]], values["imports"])


def _definition(values: dict) -> Definition:
    return Definition(**{**values, "parts": [_definition(part) for part in values["parts"]]})


def digest_of(text: str) -> str:
    """The first 24 hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def marks_in(module: str, source: str) -> tuple[set[str], set[str]]:
    """References to a module's marked functions and classes; names of its marked methods."""
    if "@tells" not in source:
        return set(), set()
    things, methods = set(), set()
    for node in ast.parse(source).body:
        if syntax.is_marked(node):
            things.add(f"{module}:{node.name}")
        for method in getattr(node, "body", ()) if isinstance(node, ast.ClassDef) else ():
            if syntax.is_marked(method) and method.name not in _BUILTIN:
                methods.add(method.name)
    return things, methods


def read_module(module: str, source: str, path: Path, marks: set[str]) -> Module:
    """The definitions of a module. marks: all that `marks_in` found in the project."""
    return _Reader(module, source, path, marks).module


class _Reader:
    """Reads one module; while it reads a definition, `found` collects what that rests on."""

    def __init__(self, name: str, source: str, path: Path, marks: set[str]):
        self.name, self.path, self.marks = name, path, marks
        self.heard = name.split(".")[0] == _IN_WORDS
        self.module = Module([], {})
        self.bound: set[str] = set()
        self.scopes: list[tuple[set[str], dict[str, Reference]]] = []
        waiting: list[tuple[Definition, ast.stmt]] = []
        for node in ast.parse(source).body:
            for imported in syntax.imports_in(node):
                _bind_import(self.module.imports, imported)
            if (
                isinstance(node, ast.Import | ast.ImportFrom)
                or syntax.is_text(node)
                or syntax.is_aside(node)
            ):
                continue
            names = list(dict.fromkeys(syntax.bound_by(node)))
            waiting.append((Definition(name, names, effect=syntax.is_effect(node)), node))
            self.bound.update(names)
        for definition, node in waiting:
            self._read(definition, node)
            self.module.definitions.append(definition)

    def _read(self, definition: Definition, node: ast.stmt) -> None:
        definition.tells = syntax.is_marked(node)
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and syntax.last_name(value) == "Registry":
            definition.kind = "registry"
            definition.parts = [
                self._part(f"{definition.names[0]}/{syntax.entry_key(entry)}", entry)
                for entry in value.args
            ]
        elif isinstance(node, ast.ClassDef):
            self._read_class(definition, node)
        else:
            self._fill(definition, node)
        if definition.effect:
            changes = (
                [node.value]
                if isinstance(node, ast.Expr)
                else getattr(node, "decorator_list", getattr(node, "targets", []))
            )
            roots = [syntax.first_name(change) for change in changes]
            definition.attached = next((r for r in roots if r in self.bound), None)

    def _read_class(self, definition: Definition, node: ast.ClassDef) -> None:
        definition.kind = "class"
        called: set[str] | None = set()
        for base in node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            reference = self._reference(syntax.names_of(inner) or [])
            if reference is not None:
                definition.bases.append(reference)
            elif called is not None:
                named = _CALLED_BY.get(syntax.last_name(inner) or "")
                called = None if named is None else called | named
        definition.called = None if called is None else sorted(called)
        methods = [
            n for n in node.body if isinstance(n, syntax.FUNCTION) and not syntax.is_special(n.name)
        ]
        shell = [n for n in node.body if n not in methods]
        definition.parts = [self._part(f"{node.name}.{m.name}", m) for m in methods]
        for part, method in zip(definition.parts, methods, strict=True):
            part.tells = syntax.is_marked(method)
        self._fill(
            definition,
            ast.ClassDef(node.name, node.bases, node.keywords, shell, node.decorator_list),
        )

    def _part(self, name: str, node: ast.AST) -> Definition:
        part = Definition(self.name, [name])
        self._fill(part, node)
        return part

    def _fill(self, definition: Definition, node: ast.AST) -> None:
        """Read one definition's text, and all that it rests on."""
        self.refers: set[tuple[str, Reference]] = set()
        self.words: set[str] = set()
        self.files: set[str] = set()
        self.text: list[str] = []
        self._tell(node)
        definition.digest = digest_of(" ".join(self.text))
        definition.refers = sorted(self.refers)
        definition.words, definition.files = sorted(self.words), sorted(self.files)

    # -- names ------------------------------------------------------------------------------------
    def _reference(self, chain: list[str]) -> Reference | None:
        """The project's thing that a name with attributes stands for, if it is one."""
        found = self._global(chain[0]) if chain else None
        if found is None or found.partition(":")[0].partition(".")[0] not in _ROOTS:
            return None
        module, _, name = found.partition(":")
        return f"{module}:{'.'.join([name, *chain[1:]] if name else chain[1:])}"

    def _global(self, name: str) -> Reference | None:
        """What a name stands for, unless it is one of the functions' around it, or Python's."""
        for names, imports in reversed(self.scopes):
            if name in imports:
                return imports[name]
            if name in names:
                return None
        own = f"{self.name}:{name}" if name in self.bound else None
        return self.module.imports.get(name, own)

    def _tells(self, call: ast.Call) -> bool:
        chain = syntax.names_of(call.func)
        return chain is not None and self._reference(chain) in self.marks

    def _is_silent(self, node: ast.stmt) -> bool:
        """Whether a statement computes nothing: a docstring, print, a warning, a marked call."""
        if syntax.is_text(node):
            return True
        if self.heard or not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            return False
        call = node.value
        method = isinstance(call.func, ast.Attribute) and call.func.attr in self.marks
        return method or syntax.first_name(call) in _SAYING or self._tells(call)

    # -- text -------------------------------------------------------------------------------------
    def _tell(self, node: object) -> None:
        """Add a syntax tree in words, without places and what computes nothing.

        Not `ast.dump`, whose text changes between Python's versions with the empty fields it
        prints.
        """
        if isinstance(node, list):
            self.text.append("[")
            for item in node:
                if not (isinstance(item, ast.stmt) and self._is_silent(item)):
                    self._tell(item)
            self.text.append("]")
        elif not isinstance(node, ast.AST):
            self.text.append(f"{type(node).__name__} {node!r}")
        elif isinstance(node, ast.Name | ast.Attribute) and (chain := syntax.names_of(node)):
            self._tell_name(chain)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if self.scopes:
                _bind_import(self.scopes[-1][1], node)
        elif isinstance(node, (*syntax.FUNCTION, ast.Lambda)):
            self._tell_function(node)
        elif isinstance(node, syntax.COMPREHENSION):
            self._tell(node.generators[0].iter)  # Python evaluates it outside
            self.scopes.append((set(syntax.stored_in(node.generators)), {}))
            self._tell_fields(node)
            self.scopes.pop()
        elif isinstance(node, ast.AnnAssign) and self.scopes:
            self._tell([node.target, node.value])  # the type of a local name computes nothing
        elif not self.heard and isinstance(node, ast.Raise):
            # That it is raised counts, and which: not its words, nor what they are made of.
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            self.text.append(f"(raise {'.'.join(syntax.names_of(raised) or [])})")
        elif not self.heard and isinstance(node, ast.Call) and self._tells(node):
            self.text.append("(tells)")
        elif not self.heard and isinstance(node, ast.keyword) and node.arg in _PROSE:
            pass
        elif (path := self._path(node)) is not None:
            if path != self.path:
                self.files.add(path.as_posix())
            self.text.append("(file)")
        else:
            if isinstance(node, ast.Attribute):
                self.words.add(node.attr)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._tell_string(node.value)
            self._tell_fields(node)

    def _tell_fields(self, node: ast.AST) -> None:
        self.text.append(f"({type(node).__name__}")
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(node, ast.JoinedStr):
                # Python 3.12 ends a format that ends in braces, as in f"{x:{form}}", with "".
                value = [part for part in value if getattr(part, "value", None) != ""]
            if value is not None and value != [] and name not in ("ctx", "kind", "type_comment"):
                self.text.append(name)
                self._tell(value)
        self.text.append(")")

    def _tell_name(self, chain: list[str]) -> None:
        self.text.append(".".join(chain))
        self.words.update(chain[1:])
        reference = self._reference(chain)
        if reference is not None:
            self.refers.add((".".join(chain), reference))

    def _tell_string(self, text: str) -> None:
        if text.isidentifier():  # getattr(measurement, "rate")
            self.words.add(text)
        elif _REFERENCE.fullmatch(text):  # "relation.nn.mixers:AttentionMixer"
            self.refers.add((text.partition(":")[2], text))

    def _tell_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        decorators = getattr(node, "decorator_list", [])
        self._tell(decorators)
        arguments = node.args
        self.text.append(f"(def {getattr(node, 'name', '')}")
        for argument in syntax.arguments_of(arguments):
            self.text.append(argument.arg)
            if argument.annotation is not None:
                self._tell_annotation(argument.annotation, bool(decorators))
        self._tell([*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)])
        self.scopes.append((syntax.local_names(node), {}))
        self._tell(node.body if isinstance(node.body, list) else [node.body])
        self.scopes.pop()
        self.text.append(")")

    def _tell_annotation(self, node: ast.expr, decorated: bool) -> None:
        """An argument's type is no text, but what is handed in may be called through it."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        before, self.text = self.text, []
        self._tell(node)
        words, self.text = self.text, before
        if decorated and any("constexpr" in word for word in words):  # Triton reads it
            self.text += words

    def _path(self, node: ast.AST) -> Path | None:
        """The path that an expression on `Path(__file__)` stands for, as far as it is constant."""
        if isinstance(node, ast.Call) and node.args:
            first = node.args[0]
            if (
                syntax.last_name(node) == "Path"
                and isinstance(first, ast.Name)
                and first.id == "__file__"
            ):
                return self.path
            if isinstance(node.func, ast.Attribute) and isinstance(first, ast.Constant):
                base = self._path(node.func.value)
                if base is not None and node.func.attr in ("with_name", "with_suffix"):
                    return getattr(base, node.func.attr)(first.value)
        elif isinstance(node, ast.Attribute) and node.attr == "parent":
            base = self._path(node.value)
            return None if base is None else base.parent
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
                base = self._path(node.value.value)
                return None if base is None else base.parents[node.slice.value]
        elif isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
            base = self._path(node.left)
            return None if base is None else base / node.right.value
        return None


def _bind_import(names: dict[str, Reference], node: ast.Import | ast.ImportFrom) -> None:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            names[alias.asname or alias.name] = f"{node.module}:{alias.name}"
        elif alias.asname:
            names[alias.asname] = f"{alias.name}:"
        else:
            names[alias.name.split(".")[0]] = f"{alias.name.split('.')[0]}:"
