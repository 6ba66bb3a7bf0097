"""Environments by name: errors of imports and options are one line."""

import pytest
from toys import Corridor

from marljax import registry
from marljax.errors import UserError


@pytest.mark.parametrize(
    ("target", "source", "message"),
    [
        ("absent_module:Maze", None, "'absent_module' .*installed or on PYTHONPATH"),
        ("maze_package.absent:Maze", "", "'maze_package.absent'"),
        ("maze_lacks:Maze", "import absent_dependency.part", "'maze_lacks' imports 'absent_dependency'"),
        ("maze_value:Maze", "raise ValueError('no walls')", "'maze_value' raised ValueError: no walls"),
        ("maze_exits:Maze", "raise SystemExit(3)", "'maze_exits' raised SystemExit: 3"),
    ],
)
def test_errors_name_the_module_to_fix(target, source, message, tmp_path, monkeypatch):
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
        (3, {}, "3 .*make"),
        ("marge", {}, "unknown environment 'marge'; did you mean merge"),
        ("merge", {"densty": "easy"}, "'densty'; did you mean density"),
        ("merge", {"density": ["easy"]}, r"density=\['easy'\]"),
        ("merge", {"duration": 5}, r"'duration' .*default_params.replace\(duration="),
    ],
)
def test_wrong_names_and_options_are_user_errors(name, options, message):
    with pytest.raises(UserError, match=message):
        registry.make(name, **options)


class Hashing(Corridor):
    def __post_init__(self):
        hash(self)


def test_exceptions_of_a_users_constructor_name_the_option():
    with pytest.raises(UserError, match=r"maze .*length=\['4'\]; .*such as length=4"):
        registry.build(Hashing, "maze", {"length": ["4"]})
