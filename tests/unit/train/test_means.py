"""A loss that is no mean over samples is seen in its graph; each is held against gradients of its parts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812 - as everybody calls it

from sublet import train  # noqa: E402
from sublet.train.means import LOOKS, Means, no_mean  # noqa: E402
from tests.rigs.little_network import data  # noqa: E402

COUNT, CLASSES = 12, 5


class Net(nn.Module):
    """Scores of classes, numbers of a sequence, and two weights of losses."""

    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(4, 8), nn.Linear(8, CLASSES, bias=False)
        self.wide, self.s = nn.Linear(4, COUNT, bias=False), nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, x):
        return self.out(torch.tanh(self.body(x)))


def labels(x, left_out=False):
    found = (x[..., 0] * 7).long().clamp(0, CLASSES - 1)
    return torch.where(x[..., 1] > 0.3, -100, found) if left_out else found


def info_nce(net, x):
    one, other = F.normalize(net(x), dim=1), F.normalize(net(x + 0.1), dim=1)
    return F.cross_entropy(one @ other.T / 0.5, torch.arange(len(x)))


def supervised_contrast(net, x):
    z = F.normalize(net(x), dim=1)
    near = (z @ z.T).logsumexp(1)
    return (near - (z * z.detach()).sum(1)).mean()


def focal(net, x):
    each = F.cross_entropy(net(x), labels(x), reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 1.0, 0.5])
MEANS = {
    "squares": lambda net, x: F.mse_loss(net(x), x[:, :1].expand(-1, CLASSES)),
    "classes": lambda net, x: F.cross_entropy(net(x), labels(x)),
    "smoothed": lambda net, x: F.cross_entropy(net(x), labels(x), label_smoothing=0.1),
    "sequences": lambda net, x: F.cross_entropy(
        net(x.unsqueeze(1) * torch.ones(3, 1)).transpose(1, 2), labels(x).unsqueeze(1).expand(-1, 3)
    ),
    "two of three tokens each": lambda net, x: F.cross_entropy(
        net(x.unsqueeze(1) * torch.ones(3, 1)).flatten(0, 1),
        torch.stack([labels(x), labels(x), labels(x) * 0 - 100], 1).flatten(),
    ),
    "two of three tokens each, in the first place": lambda net, x: F.cross_entropy(
        net(x * torch.ones(3, 1, 1)).flatten(0, 1), torch.cat([labels(x), labels(x), labels(x) * 0 - 100])
    ),
    "yes or no": lambda net, x: F.binary_cross_entropy_with_logits(net(x)[:, 0], (x[:, 0] > 0.5).float()),
    "focal": focal,
    "of sums": lambda net, x: F.mse_loss(net(x), x[:, :1].expand(-1, CLASSES), reduction="sum") / len(x),
    "of a list": lambda net, x: torch.stack([net(x).pow(2).mean(), net(x).abs().mean()]).sum() / 2,
    "of a list, averaged": lambda net, x: torch.stack([net(x).pow(2).mean(), net(x).abs().mean()]).mean(),
    "divided": lambda net, x: net(x).pow(2).mean() / 5,
    "a penalty": lambda net, x: net(x).pow(2).mean() + 0.1 * net.body.weight.pow(2).sum() + net.s.abs().mean(),
    "a penalty on all": lambda net, x: (
        net(x).pow(2).mean() + torch.cat([w.view(-1) for w in net.parameters()]).abs().mean()
    ),
    "a penalty on angles": lambda net, x: (
        net(x).pow(2).mean() + (net.out.weight @ net.out.weight.T - torch.eye(CLASSES)).pow(2).mean()
    ),
    "a penalty on gates": lambda net, x: net(x).pow(2).mean() + (net.s.sigmoid() * net.s.tanh()).repeat(5).mean(),
    "as many directions as samples": lambda net, x: F.cross_entropy(
        F.normalize(net.body(x)[:, :4], dim=1) @ F.normalize(net.wide.weight, dim=1).T, labels(x)
    ),
    "a root of weights": lambda net, x: net(x).pow(2).mean() + net.out.weight.pow(2).sum().sqrt(),
    "weighed": lambda net, x: torch.exp(-net.s[0]) * net(x).abs().mean() + net.s[0],
    "as many classes as samples": lambda net, x: F.cross_entropy(net.wide(net.body(x)[:, :4]), labels(x)),
    "a root of each": lambda net, x: (net(x).pow(2).mean(1) + 0.1).sqrt().mean(),
}
OTHERS = {
    "left out": (lambda net, x: F.cross_entropy(net(x), labels(x, left_out=True)), "labels are left out"),
    "weights": (lambda net, x: F.cross_entropy(net(x), labels(x), weight=WEIGHTS), "classes have weights"),
    "masked": (
        lambda net, x: F.mse_loss(net(x)[x[:, 0] > 0.35], x[x[:, 0] > 0.35][:, :1].expand(-1, CLASSES)),
        "a mean over",
    ),
    "by a mask": (
        lambda net, x: ((x[:, 0] > 0.35) * net(x).pow(2).mean(1)).sum() / (x[:, 0] > 0.35).sum(),
        "divided by",
    ),
    "by weights": (lambda net, x: (x[:, 0] * net(x).pow(2).mean(1)).sum() / x[:, 0].sum(), "divided by"),
    "worst": (lambda net, x: net(x).pow(2).mean(1).topk(max(1, len(x) * 2 // 3)).values.mean(), "a mean over 8 things"),
    "root": (lambda net, x: F.mse_loss(net(x), x[:, :1].expand(-1, CLASSES)).sqrt(), "a function (sqrt) of a mean"),
    "log": (lambda net, x: torch.log(net(x).pow(2).mean()) + 0.1 * net.s.sum(), "a function (log) of a mean"),
    "against the others": (info_nce, "held against the others"),
    "against all": (supervised_contrast, "held against the others"),
}


def gradient(net, loss):
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True)])


def differs(loss_of):
    """By how much the gradient of a batch is another than that of its parts, weighted by their samples."""
    torch.manual_seed(0)
    net, x = Net().double(), torch.rand(COUNT, 4, dtype=torch.float64)
    torch.set_default_dtype(torch.float64)
    try:
        whole = gradient(net, loss_of(net, x))
        parts = sum(len(part) / COUNT * gradient(net, loss_of(net, part)) for part in (x[:5], x[5:]))
    finally:
        torch.set_default_dtype(torch.float32)
    return float((whole - parts).abs().max())


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_over_samples_is_left_in_peace(name):
    if name != "a root of weights":
        assert differs(MEANS[name]) < 1e-9
    torch.manual_seed(0)
    assert no_mean(MEANS[name](Net(), torch.rand(COUNT, 4)), COUNT) is None


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_mean_over_samples_is_seen(name):
    loss_of, why = OTHERS[name]
    assert name == "weights" or differs(loss_of) > 1e-6
    torch.manual_seed(0)
    assert why in no_mean(loss_of(Net(), torch.rand(COUNT, 4)), COUNT)


def trained(**more):
    model = nn.Sequential(nn.Linear(6, 1))
    with train.session(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data(), global_batch=16, epochs=1, **more
    ) as s:
        for x, y in s:
            s.step(F.mse_loss(model(x), y).sqrt())


def test_it_is_said_once_unless_a_mean_is_asked_for(capsys):
    trained()
    assert capsys.readouterr().err.count("no mean over samples: it is a function (sqrt) of a mean") == 1
    trained(reduction="mean")
    assert "no mean" not in capsys.readouterr().err


def test_only_the_first_losses_are_looked_at(capsys):
    means, net = Means(None), Net()
    x = torch.rand(COUNT, 4)
    for _ in range(LOOKS):
        means.look(MEANS["classes"](net, x), COUNT)
    means.look(OTHERS["root"][0](net, x), COUNT)
    Means("mean").look(OTHERS["root"][0](net, x), COUNT)
    Means(None).look(OTHERS["root"][0](net, x[:1]), 1)
    assert not capsys.readouterr().err


def test_a_sum_is_seen_after_a_batch_of_one(capsys):
    """Of one sample a sum is no other than a mean."""
    means, net, x = Means(None), Net(), torch.rand(COUNT, 4)
    for count in (1, COUNT, COUNT):
        means.look(F.mse_loss(net(x[:count]), x[:count, :1].expand(-1, CLASSES), reduction="sum"), count)
    assert capsys.readouterr().err.count(f"the loss is a sum over {COUNT} samples") == 1
