"""The losses against their definitions, their gradients against autograd's."""

from __future__ import annotations

import pytest
import torch

from headstart.distill.losses import LOSSES, Teacher, law_loss, row_loss


def rows(n=40, hidden=12, vocab=31, whole=50, seed=0):
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    states, table = draw(n, hidden), draw(whole, hidden)
    lse = torch.logsumexp(states @ table.T, -1)
    likeliest = (states @ table.T).argmax(-1)
    chosen = torch.randint(-1, vocab, (n,), generator=g)
    return (
        draw(n, hidden),
        draw(vocab, hidden),
        Teacher(states, table[:vocab], lse, chosen, torch.where(likeliest < vocab, likeliest, -1)),
        torch.rand(n, generator=g, dtype=torch.float64),
    )


def defined(q, p, chosen, kind):
    """The losses as they are written in the literature."""
    alpha = torch.minimum(p, q).sum(-1)
    kl = (p * (p.log() - q.log())).sum(-1)
    if kind == "kl":
        return kl
    if kind == "tv":
        return 1 - alpha
    if kind == "mix":
        share = torch.exp(-3 * alpha).detach()
        return share * kl + (1 - share) * (1 - alpha)
    ce = torch.stack([-row[c].log() if c >= 0 else row.sum() * 0 for row, c in zip(q, chosen.tolist(), strict=True)])
    return 0.1 * ce + 0.9 * (q - p).abs().sum(-1)


@pytest.mark.parametrize("kind", LOSSES)
def test_losses_and_gradients_are_those_of_the_definition(kind, monkeypatch):
    monkeypatch.setattr("headstart.distill.losses._CELLS", 31 * 7)  # pieces that do not divide the rows
    x, weight, teacher, w = rows()
    x.requires_grad_(True)
    weight.requires_grad_(True)
    p = teacher.law(slice(None))
    assert (p.sum(-1) < 1).all(), "the vocabulary is trimmed, or this shows less than it should"
    expected = (w * defined(torch.softmax(x @ weight.T, -1), p, teacher.chosen, kind)).sum()
    by_hand = torch.autograd.grad(expected, (x, weight))
    loss, sums = law_loss(x, weight, teacher, w, kind)
    loss.backward()
    assert torch.allclose(loss, expected, atol=1e-12) and sums.loss == pytest.approx(expected.item())
    assert torch.allclose(x.grad, by_hand[0], atol=1e-10) and torch.allclose(weight.grad, by_hand[1], atol=1e-10)


def test_figures_are_weighted_means_of_acceptance():
    x, weight, teacher, w = rows()
    q, p = torch.softmax(x @ weight.T, -1), teacher.law(slice(None))
    _, sums = law_loss(x, weight, teacher, w, "tv")
    assert sums.alpha == pytest.approx(float((w * torch.minimum(p, q).sum(-1)).sum()))
    outside = teacher.likeliest < 0  # of the draft's vocabulary: nothing that it says can agree
    assert outside.any() and not outside.all()
    assert sums.agree == pytest.approx(float((w * ~outside * (p.argmax(-1) == q.argmax(-1))).sum()))
    assert sums.weight == pytest.approx(float(w.sum()))


def test_a_draft_with_the_targets_law_has_alpha_1_and_no_gradient():
    x, _, _, w = rows()
    table = torch.randn(31, 12, dtype=torch.float64)
    teacher = Teacher(x, table, torch.logsumexp(x @ table.T, -1), torch.zeros(len(x), dtype=torch.int64), (x @ table.T).argmax(-1))
    for kind in ("kl", "tv", "mix"):
        mine = x.clone().requires_grad_(True)
        loss, sums = law_loss(mine, table, teacher, w, kind)
        loss.backward()
        assert sums.alpha == pytest.approx(sums.weight) and sums.agree == pytest.approx(sums.weight)
        assert abs(float(loss)) < 1e-10
        if kind == "kl":
            assert mine.grad.abs().max() < 1e-12


def test_replay_weighs_rows_by_their_chance_of_rejection():
    x, weight, teacher, w = rows()
    q, p = torch.softmax(x @ weight.T, -1), teacher.law(slice(None))
    loss, alpha = (row_loss(q, p, teacher.chosen, "kl")[i] for i in (0, 2))
    assert float(law_loss(x, weight, teacher, w, "kl", replay=True)[0]) == pytest.approx(float((w * (1 - alpha) * loss).sum()))
