"""The tests themselves: nothing that is lacking is skipped where everything is demanded, no case passes
without checking anything, and the oldest Python that the package takes can import every file."""

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

import tools

ROOT = Path(__file__).resolve().parents[2]
TESTS = sorted((ROOT / "python" / "tests").glob("*.py"))
FOLDERS = ("python", "tests", "bench", "docs")
SCRIPTS = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py"))
# What the standard library has had since Python 3.11 and later; syntax is ruff's to check, by target-version.
NEWER = {"tomllib", "enum.StrEnum", "datetime.UTC", "contextlib.chdir", "itertools.batched", "math.cbrt"}
NEWER |= {"math.exp2", "hashlib.file_digest", "asyncio.TaskGroup", "asyncio.timeout", "warnings.deprecated"}
NEWER |= {f"typing.{word}" for word in ("Self", "override", "assert_never", "assert_type", "NotRequired")}
# Calls that prepare a case. Any other may be a check.
PREPARE = {"append", "chdir", "copytree", "delenv", "extend", "mkdir", "mkfifo", "rename", "save"}
PREPARE |= {"save_file", "setattr", "setenv", "symlink_to", "unlink", "update", "write_bytes", "write_text"}


def name(path):
    return str(path.relative_to(ROOT))


@functools.cache
def tree(path):
    return ast.parse(path.read_text())


def nodes(path, kind):
    return [node for node in ast.walk(tree(path)) if isinstance(node, kind)]


def called(call):
    """The words of what is called: ["pytest", "skip"] for instance."""
    return ast.unparse(call.func).split(".")


def test_what_is_lacking_fails_where_it_is_demanded(monkeypatch):
    monkeypatch.setenv("LIBPOM_LIBRARY", "/nowhere/libpom.so")
    needs = [
        tools.built_program,
        lambda: tools.built_tool("frechet_tool"),
        lambda: tools.referee("no_such_package"),
        lambda: tools.installed("no-such-program"),
        tools.ffmpeg_is_there,
    ]
    for demanded, outcome in (("1", pytest.fail.Exception), ("0", pytest.skip.Exception)):
        monkeypatch.setenv("LIBPOM_REQUIRE_EXTENSION", demanded)
        for need in needs:
            with pytest.raises(outcome, match=r"was not built|is not installed"):
                need()


@pytest.mark.parametrize("path", TESTS, ids=name)
def test_skips_are_those_of_tools(path):
    """A skip of a test's own would be one also where everything is demanded. What needs a GPU is marked."""
    own = [" ".join(called(call)) for call in nodes(path, ast.Call)]
    assert path.name == "tools.py" or not {"pytest skip", "pytest importorskip"} & set(own)


def checks(body):
    """Whether every way through these statements may find something wrong."""
    return any(check_of(statement) for statement in body)


def check_of(statement):
    match statement:
        case ast.If():
            return checks(statement.body) and checks(statement.orelse)
        case ast.With():
            return any("raises" in ast.unparse(item) for item in statement.items) or checks(statement.body)
        case ast.For() | ast.While() | ast.Try():
            return checks(statement.body)
        case ast.Expr(value=ast.Call() as call):
            return called(call)[-1] not in PREPARE
        case ast.Expr() | ast.Assign() | ast.FunctionDef() | ast.Import() | ast.ImportFrom():
            return False
    return True


@pytest.mark.parametrize("path", TESTS, ids=name)
def test_every_case_checks_something(path):
    tests = [node for node in nodes(path, ast.FunctionDef) if node.name.startswith("test_")]
    assert [test.name for test in tests if not checks(test.body)] == []


def imports(path):
    """(module.name, line) of what a file imports as it is read, apart from what asks for the version."""
    for node in tree(path).body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def packages_of_the_oldest_python():
    """Those of requirements.txt that setup installs for Python 3.10, as one imports them."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if "==" in line and '>= "3.11"' not in line]
    return {{"pillow": "PIL"}.get(pin, pin) for pin in (re.split("[=;]", line)[0] for line in pins)}


def asked_for(path):
    """The packages that a test has a `referee` of, and the line."""
    calls = [call for call in nodes(path, ast.Call) if called(call) == ["referee"]]
    calls = [call for call in calls if isinstance(call.args[0], ast.Constant)]
    return {call.args[0].value.split(".")[0]: call.lineno for call in calls}


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_python_3_10_imports_it(path):
    """Every import is of the standard library as it was, of this repository, or of a package that is there
    for 3.10 too; for others a test has asked before."""
    known = sys.stdlib_module_names | {file.stem for file in SCRIPTS} | {"libpom"}
    known |= {file.parent.name for file in SCRIPTS if file.stem == "__init__"}
    known |= packages_of_the_oldest_python()
    checked = asked_for(path)
    for word, line in imports(path):
        package = word.split(".")[0]
        assert not {word, package} & NEWER, f"line {line}: {word} is newer than Python 3.10"
        asked = checked.get(package, line) < line
        assert package in known or asked, f"line {line}: {package} is not there for Python 3.10"
