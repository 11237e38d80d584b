"""The architecture, read from the source: rooms, who imports whom, and how large things may be.

A room is a sub-package of `ramify`. Its docstring says what it may import. Lazy imports and those for
type checkers count like any other.
"""

import ast
import graphlib
import re
from pathlib import Path

import pytest

import ramify

ROOT = Path(ramify.__file__).parent
# In this order: a room may import those before it. "ramify" stands for the public names, `_api`.
ROOMS = (
    "numerics data engine models families inference levels io plot posterior diagnostics frontends "
    "fitting "
    "report ramify demo cli"
).split()
AT_THE_ROOT = {"ramify", "ramify._api", "ramify._version", "ramify.__main__"}
MOST_LINES, MOST_PARAMETERS = 400, 7

# Public functions whose options are part of the API, all of them by keyword but the first few.
PUBLIC = {
    "ramify.families.build.amortized": "the paper's variants of the network are options",
    "ramify.frontends.formula.build.from_formula": "all that a formula does not say",
    "ramify.fitting.fit.fit": "budgets, family, optimizer and seed of one call",
    "ramify.fitting.prior_predictive.prior_predictive": "all that a formula does not say",
    "ramify.fitting.parts.predict_parts": "from where, to where, and how to summarise",
    "ramify.posterior.questions.Questions.predictions": "which rows, groups and scale",
    "ramify.posterior.questions.Questions.comparisons": "which rows, groups and scale",
    "ramify.posterior.questions.Questions.slopes": "which rows, groups and scale",
    "ramify.posterior.posterior.Posterior.predict": "where, given what, and how to summarise",
    "ramify.posterior.levels.LevelsPosterior.predict": "the same of several factors",
    "ramify.cli.commands.diagnose": "the options of a command",
    "ramify.cli.commands.fit": "the options of a command",
    "ramify.cli.commands.predict": "the options of a command",
    "ramify.cli.commands.report": "the options of a command",
    "ramify.cli.commands.summary": "the options of a command",
}


def _name(path):
    """The module that a file is."""
    parts = ["ramify", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCE = {_name(path): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
TREES = {module: ast.parse(text) for module, text in SOURCE.items()}


def _imports(tree):
    """The modules of ramify that a file imports, wherever in it the import is."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            whole = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in SOURCE else str(node.module) for name in whole}
    return {name for name in found if name.split(".")[0] == "ramify"}


IMPORTS = {module: _imports(tree) for module, tree in TREES.items()}


def room_of(module):
    """The room that a module is in; what is at the root is the public face."""
    return "ramify" if module in AT_THE_ROOT else module.split(".")[1]


def declared(room):
    """What the room's docstring says that it may import."""
    docstring = ast.get_docstring(TREES[f"ramify.{room}"])
    lines = [
        " ".join(found.split()) for found in re.findall(r"^May import: ([^.]*)\.$", docstring, re.M)
    ]
    assert len(lines) == 1, f'{room}/__init__.py needs a line "May import: a, b, c." or "nothing."'
    return set() if lines == ["nothing"] else set(lines[0].split(", "))


def functions(tree, prefix):
    """Every function and method of a module with its full name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{prefix}.{node.name}"
            if isinstance(node, ast.FunctionDef):
                yield name, node
            yield from functions(node, name)
        else:
            yield from functions(node, prefix)


def parameters(function):
    own = function.args
    names = [a.arg for a in (*own.posonlyargs, *own.args, *own.kwonlyargs)]
    names += [a.arg for a in (own.vararg, own.kwarg) if a is not None]
    return [name for name in names if name not in ("self", "cls")]


def test_every_module_is_in_a_room():
    assert {room_of(module) for module in SOURCE} == set(ROOMS)


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "ramify"])
def test_rooms_import_what_they_say_and_only_from_above(room):
    allowed = declared(room)
    assert allowed <= set(ROOMS[: ROOMS.index(room)]), f"{room} may import rooms before it only"
    for module in (module for module in SOURCE if room_of(module) == room):
        others = {name for name in IMPORTS[module] if name != "ramify._version"}
        wrong = {name for name in others if room_of(name) not in {room, *allowed}}
        assert not wrong, f"{module} imports {wrong}; {room}/__init__.py allows {allowed}"


def test_front_ends_do_not_know_each_other():
    for module, others in IMPORTS.items():
        front_end = re.match(r"ramify\.frontends\.(\w+)", module)
        if front_end:
            theirs = [name for name in others if name.startswith("ramify.frontends.")]
            assert all(name.startswith(front_end[0]) for name in theirs)


def test_no_cycle_between_modules():
    list(graphlib.TopologicalSorter(IMPORTS).static_order())


def test_rooms_have_nothing_but_a_docstring_in_their_init():
    for room in set(ROOMS) - {"ramify", "cli", "demo"}:  # a command, and a script in one file
        assert len(TREES[f"ramify.{room}"].body) == 1, room


@pytest.mark.parametrize("module", SOURCE)
def test_modules_are_short_and_say_what_they_hold(module):
    assert ast.get_docstring(TREES[module]), f"{module} has no docstring"
    assert SOURCE[module].count("\n") <= MOST_LINES, f"{module} is too long: split it"


def test_functions_take_few_parameters():
    long = {
        name
        for module, tree in TREES.items()
        for name, function in functions(tree, module)
        if len(parameters(function)) > MOST_PARAMETERS
    }
    assert long == set(PUBLIC), "exempt what is too long, and only that"
