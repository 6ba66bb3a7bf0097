"""Declared options and params: types, choices, ranges, shapes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from marljax.core import fields
from marljax.core.fields import check_options, check_order, check_params, option, param
from marljax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Options:
    mode: str = option("fast", choices=("fast", "slow"), help="how")
    level: int = option(1, choices=(1, 2, 3))
    size: int = option(4, low=1, high=8)
    count: int = option(4, low=1)
    rate: float = option(0.5, low=0, high=1)
    flag: bool = option(False)
    sizes: tuple[int, ...] = option((1, 2), low=1)
    limit: int | None = option(None, low=1)
    either: bool | None = option(None)
    anything: Any = option(None)
    preset: str = option("easy", preset=True)
    undeclared: int = 3

    def __post_init__(self):
        check_options(self)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "slow", "level": 3, "size": 8, "count": 10**9, "rate": 1, "flag": True, "sizes": (3, 4, 5)},
        {"sizes": (), "limit": 7, "either": False, "anything": "x"},
        {"limit": None, "either": None, "undeclared": "unchecked"},
    ],
)
def test_options_in_range_are_accepted(options):
    Options(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fats"}, "mode=fats .*did you mean fast"),
        ({"level": 4}, "level=4 .*1 or 2 or 3"),
        ({"size": 0}, "size=0 .*an integer from 1 to 8"),
        ({"count": 0}, "count=0 .*at least 1"),
        ({"count": 2**31}, "count=2147483648 "),
        ({"rate": float("nan")}, "rate=nan .*from 0 to 1"),
        ({"sizes": (3, 0)}, r"sizes=\(3, 0\) .*at least 1"),
        ({"size": True}, "size=True .*an integer"),
        ({"rate": "high"}, "rate='high' .*a number"),
        ({"sizes": [3, 4]}, r"sizes=\[3, 4\] .*a tuple"),
        ({"size": None}, "size=None .*an integer"),
        ({"limit": "many"}, "limit='many' .*an integer"),
        ({"either": 1}, "either=1 .*True or False"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Options(**options)


def test_a_preset_does_not_distinguish_environments():
    assert Options(preset="hard") == Options()
    assert hash(Options(preset="hard")) == hash(Options())
    assert Options(mode="slow") != Options()


class Wheel(struct.PyTreeNode):
    radius: Any = param(0.3, above=0.0, high=1.0)


class Params(struct.PyTreeNode):
    speed: Any = param(1.0, low=0.0, high=1.23456, unit="m/s", help="of travel")
    offset: Any = param(0.0, high=2.0)
    steps: Any = param(5, low=1)
    number: Any = param(2.0, low=0, integer=True)  # a float without a fraction
    enabled: Any = param(True)
    shares: Any = param(lambda: np.array([0.5, 0.5]), low=0.0, high=1.0)
    wheel: Wheel = Wheel()
    plain: Any = 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"speed": 0, "offset": -1e30, "steps": 7.0, "enabled": 0, "plain": -3.0},
        {"speed": np.float64(1.23456), "shares": jnp.array([0, 1])},  # equal to the bound as float32
        {"steps": jnp.int32(3), "wheel": Wheel(1.0)},
    ],
)
def test_params_in_range_are_accepted(changes):
    check_params(Params().replace(**changes), Params())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speed": -0.5}, "speed=-0.5 .*from 0 to 1.2345"),
        ({"speed": 1e39}, "speed=1e.39 .*finite"),
        ({"speed": "fast"}, "speed=fast .*finite numbers"),
        ({"plain": float("inf")}, "plain=inf .*finite"),
        ({"shares": 0.5}, r"shares=0.5 has shape \[\]; it takes shape \[2\]"),
        ({"shares": np.array([0.5, 1.5])}, r"shares\[1\]=1.5 .*from 0 to 1"),
        ({"offset": 3.0}, "offset=3 .*at most 2"),
        ({"steps": 2.5}, "steps=2.5 .*an integer"),
        ({"steps": 2**31}, "steps=2147483648 .*an integer"),
        ({"number": 1.5}, "number=1.5 .*an integer of at least 0"),
        ({"enabled": 2}, "enabled=2 .*true or false"),
        ({"wheel": Wheel(0.0)}, "wheel.radius=0 .*above 0, at most 1"),
        ({"wheel": 1.0}, "structure"),
    ],
    ids=str,
)
def test_params_out_of_range_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_params(Params().replace(**changes), Params())


def test_an_undeclared_default_may_be_anything_but_not_be_replaced_by_everything():
    """Environments of users may have infinity for no limit, random keys and large unsigned integers among their params."""
    default = {"limit": np.inf, "key": jax.random.key(0), "seed": np.uint32(2**32 - 1), "table": np.array([1.0, np.inf])}
    check_params(default, default)
    check_params(default | {"limit": 3.0, "key": jax.random.key(2**31), "seed": np.uint32(2**31)}, default)
    wrong = {"limit": -np.inf, "seed": 2**32, "table": np.array([2.0, np.inf]), "key": jax.random.split(jax.random.key(0))}
    for name, value in wrong.items():
        with pytest.raises(UserError, match=name):
            check_params(default | {name: value}, default)


def test_order_between_params():
    check_order(Params(), ("offset", "speed"), ("wheel.radius", "speed"))
    check_order(Params(offset=1.0), ("offset", "speed"))  # equal
    with pytest.raises(UserError, match=r"wheel\.radius=0\.3 exceeds offset=0;"):
        check_order(Params(), ("offset", "speed"), ("wheel.radius", "offset"))


def test_declarations_are_listed_with_unit_and_meaning():
    found = {name: (field.metadata["unit"], field.metadata["help"]) for name, field, _ in fields.declared_params(Params())}
    assert list(found) == ["speed", "offset", "steps", "number", "enabled", "shares", "wheel.radius"]
    assert found["speed"] == ("m/s", "of travel")
    assert Params().shares is not Params().shares  # a callable default is called for each record
