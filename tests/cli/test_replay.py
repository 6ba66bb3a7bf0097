"""The command ``marljax replay``: what it refuses before it plays anything."""

from pathlib import Path

import pytest

from marljax.cli import replay
from marljax.config import compose
from marljax.errors import UserError


def replayed(algo, *overrides):
    settings = compose.compose(algo, ["tuned=none", *overrides])
    return replay.Replayed(Path(f"runs/{algo}"), settings, None, 0, False)


def test_runs_of_the_same_environment_are_shown_side_by_side():
    replay._check_same_environment(replayed("ippo", "env=merge"), replayed("mappo", "env=merge", "env.duration=100"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env=merge", "env.crash_penalty=100"], r"env\.crash_penalty is .* and 100.*; env\.crash_penalty=… sets both"),
        (["env=merge", "env.reward=global"], r"env\.reward is regional and global"),
        (["env=smax"], "env is merge and smax; compare runs of one environment"),
    ],
)
def test_others_are_refused_by_what_differs(words, message):
    with pytest.raises(UserError, match=rf"^runs/ippo and runs/mappo differ: {message}"):
        replay._check_same_environment(replayed("ippo", "env=merge"), replayed("mappo", *words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["out=page.txt"], r"out=page\.txt has no known format"),
        (["out=episode.GIF", "episodes=2"], r"shows one episode of one run; write an \.html file"),
        (["worst=2", "episodes=2"], "episodes and worst choose the episodes in two ways"),
        (["worst=0"], "worst"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(words, message):
    with pytest.raises(UserError, match=message):
        replay.replay(["pretrained/merge-hard-mappo", *words])
    with pytest.raises(UserError, match="a page shows 2 runs side by side; leave out pretrained/c"):
        replay.replay(["pretrained/a", "pretrained/b", "pretrained/c"])
