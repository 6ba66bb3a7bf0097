"""Rows of ``metrics.jsonl``."""

import numpy as np
import pytest

from marljax.errors import UserError
from marljax.io import metrics_log


def test_rows_hold_means_per_episode():
    metrics = {
        "loss": np.array([[1.0, 3.0, np.nan]]),
        "episodes": np.array([[0.0, 4.0, np.nan]]),
        "sum_return": np.array([[0.0, 8.0, np.nan]]),
    }
    assert metrics_log.summarise(metrics, 0) == {"episodes": 4, "loss": 2.0, "return": 2.0}
    assert metrics_log.summarise({name: values[:, 2:] for name, values in metrics.items()}, 0) == {}
    assert "return" not in metrics_log.summarise({name: values[:, :1] for name, values in metrics.items()}, 0)


def test_damaged_rows_are_left_out(tmp_path):
    good = '{"update": 2, "seed": 0, "loss": null}'
    bad = ['{"update": null, "seed": 0}', '{"update": 1}', '{"update": 1, "seed": 0, "loss": [1]}', "[]", "[" * 100_000, '{"upd']
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\n".join([good.encode(), b"\xff\xfe", *(line.encode() for line in bad)]))
    assert metrics_log.read_rows(tmp_path) == [{"update": 2, "seed": 0, "loss": None}]
    metrics_log.MetricsFile(tmp_path, 2).append([{"update": 3, "seed": 0, "loss": float("nan")}])
    assert [row["update"] for row in metrics_log.read_rows(tmp_path)] == [2, 3]
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=r"metrics.jsonl: Is a directory; move it away"):
        metrics_log.MetricsFile(tmp_path, 2)
