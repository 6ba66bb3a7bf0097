"""A module that cannot be imported is named in one line."""

import pytest

from marljax import registry
from marljax.errors import UserError


@pytest.mark.parametrize(
    ("target", "source", "message"),
    [
        ("absent_module:Maze", None, "cannot import 'absent_module' .*; is it installed or on PYTHONPATH"),
        ("maze_package.absent:Maze", "", "cannot import 'maze_package.absent'"),
        ("maze_lacks:Maze", "import absent_dependency.part", "'maze_lacks' imports 'absent_dependency', which is not there"),
        ("maze_name:Maze", "from math import absent", "importing 'maze_name' raised ImportError: cannot import name 'absent'"),
        ("maze_value:Maze", "raise ValueError('no walls')", "importing 'maze_value' raised ValueError: no walls; mend it there"),
        ("maze_syntax:Maze", "def", "importing 'maze_syntax' raised SyntaxError"),
        ("maze_leaves:Maze", "raise SystemExit(3)", "importing 'maze_leaves' raised SystemExit: 3; mend it there"),
    ],
)
def test_the_module_at_fault_is_named(target, source, message, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "maze_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    if source:
        (tmp_path / f"{target.split(':')[0]}.py").write_text(source)
    with pytest.raises(UserError, match=message):
        registry.load_class(target)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (3, {}, "3 is not the name of an environment"),
        (None, {}, "None is not the name of an environment"),
        ("merge", {"density": ["easy"]}, r"merge does not take density=\['easy'\]; give text, .*such as density='hard'"),
    ],
)
def test_what_is_no_name_or_no_option_is_one_line(name, options, message):
    with pytest.raises(UserError, match=message):
        registry.make(name, **options)
