from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedast.tasks.initialization import Initialized, Rule
from fedast.tasks.models import CharLSTM, cifar_cnn, lenet5, perceptron, resnet18
from fedast.tasks.options import TASKS
from fedast.tasks.paper import crop_and_flip

CASES = [
    (lambda: perceptron((784, 200, 200, 10)), (1, 28, 28), 10, 199_210),
    (lenet5, (1, 28, 28), 10, 44_426),
    (cifar_cnn, (3, 32, 32), 10, 797_962),
    (resnet18, (3, 32, 32), 100, 11_220_132),
]


@pytest.mark.parametrize(("model", "shape", "classes", "count"), CASES)
def test_image_models(
    model: type[nn.Module], shape: tuple[int, ...], classes: int, count: int
) -> None:
    module = model()
    assert sum(p.numel() for p in module.parameters()) == count
    assert module(torch.randn(2, *shape)).shape == (2, classes)
    assert not list(module.buffers()), "nothing but parameters: copies can be stacked"


def test_char_lstm() -> None:
    module = CharLSTM()
    assert sum(p.numel() for p in module.parameters()) == 52_720
    codes = torch.randint(0, 80, (3, 80))
    first = module(codes)
    assert first.shape == (3, 80)
    assert torch.equal(module(codes), first), "no state is carried over"
    assert not torch.equal(module(codes.flip(1)), first), "order matters"


def test_initialisation_is_pytorchs_own() -> None:
    torch.manual_seed(0)
    module = CharLSTM()
    largest = float(dict(module.named_parameters())["lstm.weight_hh_l0"].detach().abs().max())
    assert 0.09 < largest <= 1 / math.sqrt(100)
    linear = perceptron((784, 200, 200, 10))[1]  # type: ignore[index]
    assert float(linear.weight.detach().abs().max()) <= 1 / math.sqrt(784)


def spread(weight: torch.Tensor, fan_in: int, fan_out: int, rule: Rule) -> float:
    """The largest weight beside the largest that the rule allows."""
    bound = math.sqrt(6 / (fan_in + fan_out) if rule == "glorot" else 6 / fan_in)
    return float(weight.detach().abs().max()) / bound


@pytest.mark.parametrize("rule", ["glorot", "he"])
def test_weights_can_begin_by_another_rule(rule: Rule) -> None:
    torch.manual_seed(0)
    net = Initialized(lenet5, rule)()
    first, second, linear = net[0], net[3], net[6][1]  # type: ignore[index]
    assert 0.9 < spread(first.weight, 25, 6 * 25, rule) <= 1
    assert 0.9 < spread(second.weight, 6 * 25, 16 * 25, rule) <= 1
    assert 0.9 < spread(linear.weight, 256, 120, rule) <= 1
    assert not any(part.bias.any() for part in (first, second, linear))

    text = Initialized(CharLSTM, rule)()
    weights = dict(text.named_parameters())
    for gate in weights["lstm.weight_ih_l0"].chunk(4):
        assert 0.9 < spread(gate, 8, 100, rule) <= 1
    assert not weights["lstm.bias_hh_l0"].any()
    assert float(weights["embedding.weight"].detach().abs().max()) > 2, "as the model made it"

    deep = dict(Initialized(resnet18, rule)().named_modules())
    scales = [part for part in deep.values() if isinstance(part, nn.GroupNorm)]
    assert scales
    assert all(bool((part.weight == 1).all()) for part in scales), "as the model made them"


def test_a_projected_lstm_has_no_gates_in_its_projection() -> None:
    torch.manual_seed(0)
    lstm = Initialized(lambda: nn.LSTM(8, 100, proj_size=20), "glorot")()
    weights = dict(lstm.named_parameters())
    assert 0.9 < spread(weights["weight_hr_l0"], 100, 20, "glorot") <= 1
    assert 0.9 < spread(weights["weight_hh_l0"][:100], 20, 100, "glorot") <= 1


def test_a_relu_on_the_logits_only_where_it_is_asked_for() -> None:
    torch.manual_seed(0)
    images = torch.randn(50, 1, 28, 28)
    assert lenet5()(images).min() < 0
    assert lenet5(relu_on_logits=True)(images).min() == 0


def test_the_papers_numbers() -> None:
    """SPEC's table, row by row: batch, steps, rates, weight decay, targets, step cost."""
    rows = {
        "mnist": (32, 27, 0.1, 0.2, 3e-4, 3e-4, (0.83, 0.93, 0.96), 0.148),
        "fashion-mnist": (32, 27, 0.06, 0.06, 3e-4, 3e-4, (0.72, 0.82, 0.85), 0.240),
        "cifar10": (32, 27, 0.1, 0.1, 7e-4, 3e-4, (0.53, 0.63, 0.66), 0.228),
        "shakespeare": (64, 27, 7, 7, 7e-5, 7e-5, (0.32, 0.42, 0.45), 0.555),
        "cifar100": (32, 5, 0.06, 0.06, 7e-4, 3e-4, (0.5,), 2.071),
    }
    paper = {
        name: kind
        for name, kind in TASKS.builtin.items()
        if kind.__module__ == "fedast.tasks.paper"
    }
    assert set(paper) == set(rows)
    for name, kind in paper.items():
        usual = kind.defaults
        assert usual is not None
        sync = kind.sync_training or usual.training
        row = (
            usual.training.batch_size,
            usual.training.local_steps,
            usual.training.client_lr,
            sync.client_lr,
            usual.training.weight_decay,
            sync.weight_decay,
            tuple(kind.targets_by_level(usual).values()),
            usual.step_cost,
        )
        assert row == rows[name]
        assert sync.local_steps == usual.training.local_steps


def test_crop_and_flip_moves_pixels_and_invents_none() -> None:
    torch.manual_seed(0)
    images = torch.arange(1.0, 1025.0).view(1, 1, 32, 32).repeat(400, 3, 1, 1)
    out = crop_and_flip(images)
    assert out.shape == images.shape
    assert set(out.flatten().tolist()) <= set(range(1025)), "zeros come from the padding"
    assert torch.equal(out[:, 0], out[:, 1]), "channels move together"
    flipped = sum(bool(row[16, 17] < row[16, 16]) for row in out[:, 0])
    assert 150 < flipped < 250
    assert sum(torch.equal(a, images[0]) for a in out) < 20, "81 places, half flipped"
