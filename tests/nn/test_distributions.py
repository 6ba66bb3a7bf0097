import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from marljax.core.spaces import Box, Discrete, MultiDiscrete
from marljax.nn.distributions import distribution, has_choice, num_outputs

MASK = jnp.array([True, False, True, False, True])


def test_categorical_keeps_to_the_mask():
    head = distribution(Discrete(5), jnp.array([0.0, 9.0, 1.0, 9.0, 2.0]), MASK)
    samples = jax.vmap(head.sample)(jax.random.split(jax.random.key(0), 2000))
    assert set(np.unique(samples)) == {0, 2, 4}
    weights = np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum()
    np.testing.assert_allclose(head.log_prob(jnp.array(2)), np.log(weights[1]), rtol=1e-5)
    np.testing.assert_allclose(head.entropy(None), scipy.stats.entropy(weights), rtol=1e-5)
    assert head.mode() == 4


def test_a_row_with_nothing_available_stays_finite_and_without_gradient():
    def loss(outputs):
        head = distribution(Discrete(5), outputs, jnp.zeros(5, bool))
        return head.log_prob(jnp.array(1)) + head.entropy(None)

    value, gradient = jax.value_and_grad(loss)(jnp.arange(5.0))
    assert np.isfinite(value)
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize("nvec", [(2, 3), (3, 3)], ids=["unequal", "equal"])
def test_multi_categorical_is_independent_parts(nvec):
    """Held as one array if all have one size; both ways equal the sums over the parts, with their gradients."""
    keys = jax.random.split(jax.random.key(0), 2)
    outputs, mask = jax.random.normal(keys[0], (sum(nvec),)), jnp.arange(sum(nvec)) != 1

    def together(outputs):
        return distribution(MultiDiscrete(nvec), outputs, mask)

    def parts(outputs):
        ends = (slice(None, nvec[0]), slice(nvec[0], None))
        return [distribution(Discrete(size), outputs[end], mask[end]) for size, end in zip(nvec, ends, strict=True)]

    def alone(outputs, sample):
        return sum(part.log_prob(choice) for part, choice in zip(parts(outputs), sample, strict=True))

    for choices in np.ndindex(*nvec):
        sample = jnp.array(choices)
        found = jax.value_and_grad(lambda outputs, sample=sample: together(outputs).log_prob(sample))(outputs)
        for one, other in zip(found, jax.value_and_grad(alone)(outputs, sample), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    entropy = sum(part.entropy(None) for part in parts(outputs))
    np.testing.assert_allclose(together(outputs).entropy(jax.random.key(0)), entropy, rtol=1e-6)
    assert together(outputs).mode().tolist() == [int(part.mode()) for part in parts(outputs)]
    samples = np.asarray(jax.vmap(together(outputs).sample)(jax.random.split(keys[1], 20_000)))
    counts = np.zeros(nvec)
    np.add.at(counts, tuple(samples.T), 1 / len(samples))
    each = [np.exp(part.log_prob(jnp.arange(size)[:, None])).ravel() for size, part in zip(nvec, parts(outputs), strict=True)]
    np.testing.assert_allclose(counts, np.outer(*each), atol=0.015)


def test_squashed_gaussian_density_integrates_to_one_and_matches_its_samples():
    head = distribution(Box((1,), -1.0, 1.0), jnp.array([0.3, -0.5]), jnp.ones(1, bool))
    actions = jnp.linspace(-0.9999, 0.9999, 20001)
    density = jnp.exp(jax.vmap(head.log_prob)(jnp.arctanh(actions)[:, None]))
    assert np.trapezoid(density, actions) == pytest.approx(1.0, abs=2e-3)
    samples = jax.vmap(head.sample)(jax.random.split(jax.random.key(0), 20_000))
    entropy = -np.trapezoid(density * np.log(np.maximum(density, 1e-30)), actions)
    estimates = jax.vmap(head.entropy)(jax.random.split(jax.random.key(1), 20_000))
    assert float(estimates.mean()) == pytest.approx(float(entropy), abs=0.02)
    assert float(jnp.tanh(samples).mean()) == pytest.approx(float(np.trapezoid(density * actions, actions)), abs=0.01)


def test_padding_is_in_no_probability_entropy_or_divergence():
    """As a narrower distribution without padding, whatever the network's outputs for it."""
    mask = jnp.array([[True, True, True], [True, False, True]])
    outputs, others = jax.random.normal(jax.random.key(0), (2, 2, 6))
    padded, other = (distribution(Box((3,), -1.0, 1.0), rows, mask) for rows in (outputs, others))
    sample = padded.sample(jax.random.key(1))
    for values in (sample, padded.mode(), padded.action(sample), padded.action(jnp.ones((2, 3)))):
        np.testing.assert_array_equal(values[1, 1], 0.0)
    for row, kept in enumerate(([0, 1, 2], [0, 2])):
        columns = np.array([*kept, *(3 + np.array(kept))])
        space, whole = Box((len(kept),), -1.0, 1.0), jnp.ones(1, bool)
        narrow, narrow_other = (distribution(space, rows[row, columns], whole) for rows in (outputs, others))
        own = sample[row, np.array(kept)]
        np.testing.assert_allclose(padded.log_prob(sample)[row], narrow.log_prob(own), rtol=1e-5)
        np.testing.assert_allclose(padded.kl(other)[row], narrow.kl(narrow_other), rtol=1e-5)
        np.testing.assert_allclose(padded.entropy(jax.random.key(1))[row], -narrow.log_prob(own), rtol=1e-5)

    def spread(outputs):
        head = distribution(Box((3,), -1.0, 1.0), outputs, mask)
        return jnp.sum(head.log_prob(sample) + head.entropy(jax.random.key(1)) + head.kl(other))

    gradient = jax.grad(spread)(outputs)
    np.testing.assert_array_equal(gradient[1, jnp.array([1, 4])], 0.0)
    assert (np.delete(np.asarray(gradient).ravel(), [7, 10]) != 0).all()


@pytest.mark.parametrize("start", [-9.0, 5.0])
def test_a_standard_deviation_out_of_bounds_learns_its_way_back(start):
    """Towards samples of deviation 1. A gradient that leads further out does not pass, one inside is unchanged."""
    samples = jax.random.normal(jax.random.key(0), (256, 1))

    def loss(outputs, samples):
        head = distribution(Box((1,), -1.0, 1.0), outputs, jnp.ones(1, bool))
        return -jnp.mean(jax.vmap(head.log_prob)(samples))

    gradient, outputs = jax.jit(jax.grad(loss)), jnp.array([0.0, start])
    for _ in range(100):
        outputs -= 0.1 * jnp.sign(gradient(outputs, samples))
    assert abs(outputs[1]) < 0.3
    far = jnp.broadcast_to(samples[:1] * 1e6 * (start > 0), samples.shape)  # of these the likeliest deviation lies further out
    assert gradient(jnp.array([0.0, start]), far)[1] == 0.0
    inside = jnp.array([0.3, -0.5])
    density = lambda outputs: -jnp.mean(jax.scipy.stats.norm.logpdf(samples, outputs[0], jnp.exp(outputs[1])))  # noqa: E731
    np.testing.assert_allclose(gradient(inside, samples), jax.grad(density)(inside), rtol=1e-4)


def test_saturated_actions_keep_their_log_probability():
    """A sample far out has tanh = 1 exactly in float32; its ratio to itself is still 1 and its gradient finite."""

    def log_prob(outputs):
        return distribution(Box((1,), -1.0, 1.0), outputs, jnp.ones(1, bool)).log_prob(jnp.array([30.0]))

    value, gradient = jax.value_and_grad(log_prob)(jnp.array([29.0, 0.0]))
    expected = scipy.stats.norm.logpdf(30.0, 29.0, 1.0) - (2 * np.log(2.0) - 60.0)
    assert float(value) == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("space", "width", "choice"),
    [(Discrete(4), 4, [True, False]), (MultiDiscrete((1, 3)), 4, [True, False]), (Box((2,), -1.0, 1.0), 4, [True, True])],
    ids=["discrete", "multi", "box"],
)
def test_outputs_and_choices_of_a_space(space, width, choice):
    mask = jnp.array([[True, True, False, True], [True, False, False, isinstance(space, MultiDiscrete)]])
    assert num_outputs(space) == width
    assert has_choice(space, mask).tolist() == choice


def test_many_choices_are_drawn_by_their_probabilities():
    """Beyond ``BLOCKED_ABOVE`` choices by cumulative sums; a masked choice is never drawn, whatever the rounding."""
    draw = np.random.default_rng(0)
    logits, mask = jnp.array(draw.normal(size=(3, 385)) * 3.0, jnp.float32), draw.random((3, 385)) < 0.3
    mask[2] = False
    mask[2, -1] = True
    head = distribution(Discrete(385), logits, jnp.array(mask))
    samples = np.asarray(jax.jit(jax.vmap(head.sample))(jax.random.split(jax.random.key(0), 20_000)))
    chances = np.exp(np.asarray(head.log_prob(jnp.broadcast_to(jnp.arange(385)[:, None], (385, 3)))))
    for row in range(3):
        counts = np.bincount(samples[:, row], minlength=385)
        assert counts[~mask[row]].sum() == 0
        expected = 20_000 * chances[:, row].astype(float)
        often = expected > 5
        if often.sum() == 1:
            continue
        expected *= counts[often].sum() / expected[often].sum()
        assert scipy.stats.chisquare(counts[often], expected[often]).pvalue > 1e-3


def test_divergences_are_those_of_distrax():
    import distrax

    first, second = jnp.array([0.0, 9.0, 1.0, -1.0, 2.0]), jnp.array([1.0, 3.0, 1.0, 5.0, 0.5])
    heads = [distribution(Discrete(5), logits, MASK) for logits in (first, second)]
    plain = [distrax.Categorical(logits=logits[MASK]) for logits in (first, second)]
    np.testing.assert_allclose(heads[0].kl(heads[1]), plain[0].kl_divergence(plain[1]), rtol=1e-5)
    parts = [distribution(MultiDiscrete((2, 3)), logits, jnp.ones(5, bool)) for logits in (first, second)]
    split = [[distrax.Categorical(logits=part) for part in jnp.split(logits, [2])] for logits in (first, second)]
    total = sum(mine.kl_divergence(theirs) for mine, theirs in zip(*split, strict=True))
    np.testing.assert_allclose(parts[0].kl(parts[1]), total, rtol=1e-5)
    squashed = [distribution(Box((2,), -1.0, 1.0), logits[:4], jnp.ones(1, bool)) for logits in (first / 9, second / 9)]
    samples = jax.vmap(squashed[0].sample)(jax.random.split(jax.random.key(0), 100_000))
    estimate = jnp.mean(squashed[0].log_prob(samples) - squashed[1].log_prob(samples))
    np.testing.assert_allclose(squashed[0].kl(squashed[1]), estimate, rtol=0.02)
