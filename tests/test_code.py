"""What the code hash follows and what it leaves out, on projects of a few lines and on this one."""

import ast
import inspect
from pathlib import Path

import pytest

from relation.nn import Execution
from relation.pipeline.definitions import Definition
from relation.pipeline.hashes import PROJECT, STAGES, Code, code_hash
from relation.pipeline.uses import DEFINITIONS

BASE = {
    "job": "from relation.parts import helper\n\ndef run(x):\n    return helper(x) + 1\n",
    "parts": "def helper(x):\n    return x\n\ndef other(x):\n    return -x\n",
    "telling": (
        "from relation.registry import tells\n\n"
        "@tells\ndef note(text):\n    pass\n\n"
        "@tells\nclass Bar:\n    @tells\n    def advance(self, text):\n        pass\n"
    ),
}


def hash_of(root: Path, uses: frozenset[str] = frozenset(), **modules: str) -> str:
    """The hash of `run` in relation/job.py of a project of these modules."""
    (root / "relation").mkdir(exist_ok=True)
    for path in (root / "relation").glob("*.py"):
        path.unlink()
    for name, source in {**BASE, **modules}.items():
        (root / "relation" / f"{name}.py").write_text(source, encoding="utf-8")
    return Code(root).hash(["relation.job:run"], uses)


def run(body: str, above: str = "") -> str:
    return f"{above}\ndef run(x):\n    {body}\n"


TELLING = "from relation.telling import Bar, note"
RETURN = "\n    return x"
# Two ways to write one module that compute the same.
SAME = [
    (run("return x + 1"), 'def run(x):  # why\n    """What."""\n\n    return (x\n+1)'),
    (run("return x"), "def run(x: int) -> int:\n    return x\n"),
    (run("y: int = x\n    return y"), run("y: float = x\n    return y")),
    (run('raise ValueError("a")'), run('raise ValueError(f"b {x}") from None')),
    (run(f"print(x){RETURN}"), run("return x")),
    (run(f'warnings.warn("a"){RETURN}', "import warnings"), run("return x", "import warnings")),
    (run('return dict(a=x, help="a")'), run('return dict(a=x, help="b")')),
    (run(f'note("a"){RETURN}', TELLING), run("return x")),
    (run('return note("a")', TELLING), run("return note(x)", TELLING)),
    (
        run(f'bar = Bar()\n    bar.advance("a"){RETURN}', TELLING),
        run(f"bar = Bar(){RETURN}", TELLING),
    ),
    (run("return x"), run("return x", "def unused():\n    return 1\n")),
    (run("return x"), run("return x", "from relation.parts import other")),
    # A function moves; a class's other methods are not called.
    (BASE["job"], run("return helper(x) + 1", "def helper(x):\n    return x\n")),
    (
        run("return C().a()", "class C:\n    def a(self):\n        return 1\n"),
        run(
            "return C().a()", "class C:\n    def a(self):\n        return 1\n    def b(self): ...\n"
        ),
    ),
]
C = "class C({}):\n    def {}(self):\n        return {}\n"
# Two ways that do not.
DIFFERENT = [
    (run("return x + 1"), run("return x + 2")),
    (run("return x"), "def run(y):\n    return y\n"),
    (run("return 'a'"), run("return b'a'")),
    (run("return x"), "def run(x=1):\n    return x\n"),
    (run("raise ValueError(x)"), run("raise TypeError(x)")),
    (run("return C().a()", C.format("", "a", 1)), run("return C().a()", C.format("", "a", 2))),
    (
        run("return getattr(C(), 'a')()", C.format("", "a", 1)),
        run("return getattr(C(), 'a')()", C.format("", "a", 2)),
    ),
    (
        run("return C() + x", C.format("", "__add__", 1)),
        run("return C() + x", C.format("", "__add__", 2)),
    ),
    # Bases outside the project call methods themselves, through a base of the project too.
    *(
        (
            run("return C()", base + C.format(name, method, 1)),
            run("return C()", base + C.format(name, method, 2)),
        )
        for base, name, method in (
            ("from torch.nn import Module\n", "Module", "forward"),
            ("from torch.nn import Module\nclass B(Module): ...\n", "B", "forward"),
            ("from threading import Thread\n", "Thread", "work"),
        )
    ),
    # Effects of the module, of a name, and of a decorator.
    (run("return x"), run("return x", "import torch\ntorch.manual_seed(1)")),
    (run("return TABLE", "TABLE = {}"), run("return TABLE", "TABLE = {}\nTABLE[1] = 2")),
    (run("return x"), run("return x", "@known.register\ndef _():\n    return 1\n")),
    # One of two definitions of a name.
    (
        run("return V", "try:\n    V = 1\nexcept E:\n    V = 2"),
        run("return V", "try:\n    V = 1\nexcept E:\n    V = 3"),
    ),
    # An imported name, however it is imported.
    (BASE["job"], BASE["job"].replace("import helper", "import other as helper")),
    *(
        (
            run(f"{inside}\n    return {name}(x)", above),
            run(f"{inside}\n    return {name[:-6]}other(x)", above),
        )
        for inside, above, name in (
            ("pass", "from relation import parts", "parts.helper"),
            ("pass", "import relation.parts", "relation.parts.helper"),
            ("from relation import parts", "", "parts.helper"),
        )
    ),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_what_computes_nothing_is_not_hashed(tmp_path: Path, first: str, second: str) -> None:
    assert hash_of(tmp_path, job=first) == hash_of(tmp_path, job=second)


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_what_computes_is_hashed(tmp_path: Path, first: str, second: str) -> None:
    assert hash_of(tmp_path, job=first) != hash_of(tmp_path, job=second)


CALLS = (
    "from relation.parts import helper",  # a name
    "from relation.through import helper",  # a re-export
    "from relation import parts\nhelper = parts.helper",
    "from relation import parts\ndef helper(x):\n    return getattr(parts, x)(x)",
    "def helper(x: 'Part'):\n    return x.helper()\nfrom relation.parts import Part",
    "from relation.registry import Registry\nhelper = Registry(Part('a', 'relation.parts:helper'))",
)


@pytest.mark.parametrize("above", CALLS)
def test_a_hash_follows_what_is_called(tmp_path: Path, above: str) -> None:
    changed = BASE["parts"] + "class Part:\n    def helper(self):\n        return {}\n"
    hashes = {
        hash_of(
            tmp_path,
            job=run("return helper(x)", above),
            through="from relation.parts import helper",
            parts=changed.replace("return x", f"return {value}").format(value),
        )
        for value in (1, 2)
    }
    assert len(hashes) == 2


def test_a_data_file_counts_without_its_comments(tmp_path: Path) -> None:
    job = run("return FILE.read_text()", 'FILE = Path(__file__).with_name("data.toml")')
    data = tmp_path / "relation" / "data.toml"
    data.parent.mkdir()
    hashes = []
    for text in ("a = 1\n", "# why\na = 1\n", "a = 2\n"):
        data.write_text(text)
        hashes.append(hash_of(tmp_path, job=job))
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_registry_counts_as_far_as_it_is_used(tmp_path: Path) -> None:
    above = (
        "from relation.registry import Registry\nTHINGS = Registry(Entry('a', 1), Entry('b', {}))"
    )
    first, second = (run("return THINGS[x]", above.format(value)) for value in (1, 2))
    for uses, differs in (("", True), ("THINGS/a", False), ("THINGS/b", True), ("OTHER/a", True)):
        used = frozenset(filter(None, [uses]))
        hashes = {hash_of(tmp_path, used, job=first), hash_of(tmp_path, used, job=second)}
        assert (len(hashes) == 2) == differs, uses
    with pytest.raises(LookupError, match="THINGS/c"):
        hash_of(tmp_path, frozenset(["THINGS/c"]), job=first)


def test_a_cache_that_is_damaged_or_stale_changes_nothing(tmp_path: Path) -> None:
    first = hash_of(tmp_path, job=run("return x"))
    second = hash_of(tmp_path, job=run("return -x"))
    (kept,) = (tmp_path / "relation/__pycache__").glob("job.*.json")
    whole = kept.read_text(encoding="utf-8")
    for damaged in ("", "{}", whole[:-2], whole.replace("USub", "UAdd"), "\x00"):
        kept.write_text(damaged, encoding="utf-8")
        assert hash_of(tmp_path, job=run("return -x")) == second != first
    assert kept.read_text(encoding="utf-8") == whole
    kept.unlink()
    kept.mkdir()
    assert hash_of(tmp_path, job=run("return -x")) == second


def test_every_python_gives_code_one_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 puts an empty text behind the braces that end a format."""
    source = run('return f"{x:{form}}"')
    here, parse = hash_of(tmp_path, job=source), ast.parse

    def parsed(text: str, *rest, **more) -> ast.AST:
        tree = parse(text, *rest, **more)
        for node in ast.walk(tree):
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                node.format_spec.values.append(ast.Constant(""))
        return tree

    monkeypatch.setattr(ast, "parse", parsed)
    (tmp_path / "relation/__pycache__").rename(tmp_path / "cache")
    assert hash_of(tmp_path, job=source) == here


# -- this project ---------------------------------------------------------------------------------

CODE = Code(PROJECT)
# What tells people, stops a job or stamps a record: an edit of it makes nothing stale.
TELLING = {
    "relation.pipeline.hashes:code_hash",
    "relation.pipeline.hashes:golden_hash",
    "relation.store.locks:held",
    "relation.ops.backends:_cudnn_refusal",
    "relation.ops.backends:_flash_attention_refusal",
    "relation.ops.backends:_flash_refusal",
    "relation.ops.backends:_flex_refusal",
    "relation.pipeline.origin:stamp",
    "relation.store.stamp:origin",
    "relation.machine.progress:Progress",
    "relation.train.guards:check_writable",
    "relation.train.guards:writing",
    "relation.train.watch:Watch",
    "relation.pipeline.uses:uses_of",
    "relation.pipeline.uses:uses_of_model",
    "relation.pipeline.uses:uses_of_models",
    "advance",
}
# What a module does when it is imported: hashed once the module is reached by one of its names.
EFFECTS = {
    "relation.__main__",
    "relation.kernels",
    "relation.ops.trigonometry",
    "relation.bench",
    "relation.hf",
    "relation.hf.attention",
    "relation.hf.configuration",
    "relation.hf.modeling",
    "report.values.frames",
}


def definitions() -> list[Definition]:
    return [d for module in CODE.sources for d in CODE.module(module).definitions]


def test_every_stage_has_its_entry_points() -> None:
    assert len({code_hash(stage) for stage in STAGES}) == len(STAGES)
    with pytest.raises(LookupError, match="nothing"):
        CODE.hash(["relation.pipeline.hashes:nothing"])


def test_every_name_of_the_project_is_found() -> None:
    """A name that led nowhere would be left out of the hashes."""
    every = [part for d in definitions() for part in (d, *d.parts)]
    lost = [(d.module, said) for d in every for said, name in d.refers if not CODE.resolve(name)]
    assert not lost
    for path in CODE.paths.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert not node.level and node.names[0].name != "*", path


def test_what_no_hash_follows_is_listed() -> None:
    assert CODE.marks == TELLING
    unmarked = {
        method.names[0].partition(".")[2]
        for d in definitions()
        for method in d.parts
        if d.kind == "class" and not method.tells
    }
    methods = {mark for mark in TELLING if ":" not in mark}
    assert not unmarked & methods, "a call of a marked method must be no other's"
    effects = {d.module for d in definitions() if d.effect and d.attached is None}
    # A figure's declaration is a decorator; the figures' job reaches every module of figures.
    assert {module for module in effects if not module.startswith("report.figures.")} == EFFECTS


def test_registries_are_written_as_the_hash_reads_them() -> None:
    from relation.data.sources import SOURCES
    from relation.nn.mixers import LAYERS
    from relation.ops import BACKENDS
    from relation.variants import VARIANTS

    read = {d.names[0]: d for d in definitions() if d.kind == "registry"}
    written = {"SOURCES": SOURCES, "VARIANTS": VARIANTS, "LAYERS": LAYERS, "BACKENDS": BACKENDS}
    assert read.keys() == written.keys()
    for name, registry in written.items():
        keys = ["/".join(key) if isinstance(key, tuple) else key for key in registry]
        for key, entry in zip(keys, read[name].parts, strict=True):
            assert f"{entry.names[0]}/".startswith(f"{name}/{key}/")


def test_a_checkpoint_is_diagnosed_by_the_definitions() -> None:
    defaults = inspect.signature(Execution).parameters
    assert {name: defaults[name].default for name in DEFINITIONS} == DEFINITIONS
