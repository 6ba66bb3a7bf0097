"""Matchings against SciPy's: the exact one gives the same total, the auction nearly, the greedy one at least half."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from marljax.errors import UserError
from marljax.utils.assignment import METHODS, match, prices

SHAPES = ((8, 5), (5, 8), (20, 20))
LEAST = {"exact": 1.0 - 1e-6, "auction": 0.98, "greedy": 0.5}
run = jax.jit(jax.vmap(match, in_axes=(0, 0, 0, None)), static_argnums=3)


def kinds(draw, rows, columns):
    """Weights, mask and the value of declining, by the kind of instance."""
    weights, all_pairs = draw.normal(size=(rows, columns)), np.ones((rows, columns), bool)
    decline = np.zeros(rows)
    return {
        "random": (weights, all_pairs, 0.2 * draw.normal(size=rows)),
        "tied": (draw.integers(-2, 4, size=(rows, columns)).astype(float), all_pairs, decline),
        "alike": (np.ones((rows, columns)), all_pairs, decline),
        "masked": (weights, draw.random((rows, columns)) < 0.3, decline),
        "scarce rows": (weights, np.broadcast_to(draw.random((rows, 1)) < 0.3, (rows, columns)), decline),
        "scarce columns": (weights, np.broadcast_to(draw.random(columns) < 0.3, (rows, columns)), decline),
        "empty": (weights, np.zeros((rows, columns), bool), decline),
        "worth nothing": (-np.abs(weights), all_pairs, decline),
        "as many as possible": (weights, draw.random((rows, columns)) < 0.5, np.full(rows, -100.0)),
        "large": (1e6 * weights, all_pairs, decline),
        "small": (1e-6 * weights, all_pairs, decline),
    }


def best(weights, mask, decline) -> float:
    """SciPy's total, where declining pairs cost nothing."""
    gains = np.maximum(np.where(mask, weights - decline[:, None], 0.0), 0.0)
    rows, columns = linear_sum_assignment(-gains)
    return gains[rows, columns].sum()


@functools.cache
def instances(rows, columns):
    draw = np.random.default_rng(rows + 100 * columns)
    return [(kind, *instance) for _ in range(3) for kind, instance in kinds(draw, rows, columns).items()]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_totals_are_those_of_scipy(shape, method):
    names, *batch = zip(*instances(*shape), strict=True)
    weights, mask, decline = (np.stack(part) for part in batch)
    found = np.asarray(run(weights.astype(np.float32), mask, decline.astype(np.float32), method))
    for kind, weights, mask, decline, columns in zip(names, *batch, found, strict=True):
        rows = np.flatnonzero(columns < shape[1])
        assert len(set(columns[rows].tolist())) == len(rows), kind
        assert mask[rows, columns[rows]].all(), kind
        gains = weights[rows, columns[rows]] - decline[rows]
        assert (gains > 0).all(), kind
        most = best(weights, mask, decline)
        assert gains.sum() >= LEAST[method] * most - 1e-9, kind
        assert gains.sum() <= (1 + 1e-5) * most + 1e-9, kind
        if kind == "as many as possible" and method == "exact":
            pairs = linear_sum_assignment(mask, maximize=True)
            assert len(rows) == mask[pairs].sum()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1.0, 1e-3], ids=["logits", "probabilities"])
def test_as_many_pairs_as_possible_and_of_them_the_best(scale, method):
    """However small the differences; the greedy method may miss up to half."""
    draw, shape = np.random.default_rng(0), (30, 40)
    weights = scale * draw.normal(size=(5, *shape)) + scale
    mask = draw.random((5, *shape)) < np.array([1.0, 0.5, 0.1, 0.05, 0.0])[:, None, None]
    declines_never = jax.jit(jax.vmap(functools.partial(match, decline=None, method=method)))
    found = np.asarray(declines_never(weights.astype(np.float32), mask))
    span = np.ptp(weights)
    for worth, allowed, columns in zip(weights, mask, found, strict=True):
        rows = np.flatnonzero(columns < shape[1])
        assert allowed[rows, columns[rows]].all()
        places = linear_sum_assignment(np.where(allowed, worth + 1e3 * span, 0.0), maximize=True)
        pairs = allowed[places].sum()
        if method == "greedy":
            assert len(rows) >= pairs / 2
            continue
        assert len(rows) == pairs
        lost = (worth[places] * allowed[places]).sum() - worth[rows, columns[rows]].sum()
        assert lost <= (1e-5 if method == "exact" else 2e-3) * span * max(pairs, 1)


def test_an_unknown_method_names_the_nearest():
    with pytest.raises(UserError, match="did you mean exact"):
        match(jnp.ones((2, 2)), jnp.ones((2, 2), bool), method="exakt")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prices_are_the_dual_that_tells_what_the_total_loses_without_a_row(shape):
    instances_ = [instance for instance in instances(*shape) if instance[0] not in ("large", "small")]
    priced = jax.jit(lambda weights, mask, column: prices(weights, mask, column))
    for kind, weights, mask, _ in instances_:
        weights = weights.astype(np.float32)
        nothing = np.zeros(shape[0])
        column = np.asarray(run(weights[None], mask[None], nothing[None], "exact"))[0]
        price = np.asarray(priced(weights, mask, column))
        has = column < shape[1]
        own = weights[np.arange(shape[0]), np.minimum(column, shape[1] - 1)] - price[np.minimum(column, shape[1] - 1)]
        profit = np.where(has, own, 0.0)
        assert (price >= 0).all(), kind
        assert (np.where(mask, weights, -np.inf) <= profit[:, None] + price + 1e-5).all(), kind
        total = best(weights, mask, nothing)
        for row in range(shape[0]):
            others = mask & (np.arange(shape[0]) != row)[:, None]
            np.testing.assert_allclose(profit[row], total - best(weights, others, nothing), atol=1e-5, err_msg=kind)


@pytest.mark.parametrize("method", ["auction", "greedy"])
def test_no_price_exceeds_the_weight_of_its_pair(method):
    """However far a matching is from the best."""
    weights = jnp.asarray(np.random.default_rng(0).uniform(0, 10, (40, 60)), jnp.float32)
    mask = jnp.ones(weights.shape, bool)
    column = jax.jit(match, static_argnums=3)(weights, mask, 0.0, method)
    price = jax.jit(prices)(weights, mask, column)
    assert (price[column] <= weights[jnp.arange(40), column]).all()
    assert (np.delete(np.asarray(price), np.asarray(column)) == 0).all()
