"""The figures of each task are scikit-learn's, in the units of the target, and absent where they are not defined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics

from assay.data import Task
from assay.errors import ConfigError
from assay.runs.metrics import calibration_error, loss_of, measured


def test_figures_of_classes_are_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    for classes in (2, 4):
        scores, y = (
            torch.randn(200, classes, generator=generator),
            torch.randint(0, classes, (200,), generator=generator),
        )
        found = measured(Task.of_classes(classes), scores, y)
        said, p = scores.argmax(1), torch.softmax(scores, 1)
        assert found["test_accuracy"] == pytest.approx(metrics.accuracy_score(y, said))
        assert found["test_balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, said))
        average = "binary" if classes == 2 else "macro"
        assert found["test_f1"] == pytest.approx(metrics.f1_score(y, said, average=average))
        auc = metrics.roc_auc_score(y, p[:, 1]) if classes == 2 else metrics.roc_auc_score(y, p, multi_class="ovr")
        assert found["test_commonest"] == pytest.approx(float(y.bincount().max()) / len(y))
        assert found["test_auc"] == pytest.approx(auc, abs=1e-6)


def test_figures_of_a_regression_are_in_the_units_of_the_target() -> None:
    task = Task(kind="regression", low=0, high=100)
    truth = torch.tensor([0.0, 50.0, 100.0])
    found = measured(task, task.scaled(torch.tensor([10.0, 50.0, 90.0]))[:, None], task.scaled(truth))
    assert found["test_mae"] == pytest.approx(20 / 3, abs=1e-4)
    assert found["test_rmse"] == pytest.approx((200 / 3) ** 0.5, abs=1e-4)
    assert found["test_r2"] == pytest.approx(1 - 200 / 5000, abs=1e-5)
    assert task.scaled(torch.tensor([-5.0, 105.0])).tolist() == [-1, 1]


def test_figures_of_labels() -> None:
    task = Task(kind="multilabel", names=("a", "b"))
    found = measured(
        task, torch.tensor([[9.0, -9.0], [-9.0, 9.0], [9.0, 9.0]]), torch.tensor([[1.0, 0], [0, 1], [1, 0]])
    )
    assert found["test_exact"] == pytest.approx(2 / 3)
    assert found["test_accuracy"] == pytest.approx(5 / 6)


def test_what_is_not_defined_is_not_made_up() -> None:
    one_class = measured(Task.of_classes(2), torch.randn(5, 2), torch.zeros(5, dtype=torch.int64))
    assert one_class["test_auc"] is None
    assert measured(Task.of_classes(2), torch.full((5, 2), torch.nan), torch.zeros(5, dtype=torch.int64)) == {}


def test_calibration_error_by_hand() -> None:
    confidence, right = np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, False, True, True])
    assert calibration_error(confidence, right) == pytest.approx((0.8 + 0.8) / 4)


@pytest.mark.parametrize(
    ("task", "output", "target", "loss"),
    [
        (Task(kind="regression", low=0, high=1), [[0.5]], [0.0], 0.25),
        (Task(kind="regression", low=0, high=1, loss="huber"), [[1.0]], [0.0], 0.25 * (1 - 0.125)),
        (Task(kind="multilabel", names=("a", "b")), [[0.0, 0.0]], [[1.0, 0.0]], 0.693147),
    ],
)
def test_the_loss_of_a_task(task: Task, output: list[list[float]], target: list[float], loss: float) -> None:
    assert float(loss_of(task)(torch.tensor(output), torch.tensor(target))) == pytest.approx(loss, abs=1e-5)


def test_a_model_with_several_outputs_is_refused_for_a_regression() -> None:
    with pytest.raises(ConfigError, match="one output"):
        loss_of(Task(kind="regression", low=0, high=1))(torch.zeros(3, 2), torch.zeros(3))
