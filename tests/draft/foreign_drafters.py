"""Drafters of others, good and broken, as packages of other people would bring them."""

from __future__ import annotations

import numpy as np
import torch

from headstart import Drafter, LookupDrafter, Proposal


class Repeats(LookupDrafter):
    """Drafts the last token again, `times` times at most."""

    def __init__(self, spec, context):
        self.times = (spec.options or {}).get("times", 2)

    def lookup(self, seq, k):
        return seq.tokens[-1:] * min(k, self.times)


class Broken(Drafter):
    """Does what the option `how` says."""

    def __init__(self, spec, context=None):
        self.how, self.vocab = spec, 30

    def propose(self, chunks):
        if self.how == "raises":
            raise RuntimeError("nobody expected this")
        if self.how == "nothing":
            return None
        if self.how == "too few":
            return [Proposal()] * (len(chunks) - 1)
        return [self.one(c.k) for c in chunks]

    def one(self, k):
        law = torch.full((k, self.vocab), 1 / self.vocab, dtype=torch.float64)
        moved = torch.zeros_like(law)  # from token 2 to token 3
        moved[:, 2:4] = torch.tensor([-1, 1]) / self.vocab
        wrong = {
            "no proposal": None,
            "no tokens": Proposal(None),
            "too many": Proposal([1] * (k + 5)),
            "foreign id": Proposal([self.vocab] * k),
            "negative id": Proposal([-1] * k),
            "floats": Proposal([1.0] * k),
            "text": Proposal("a"),
            "array": Proposal(np.array([1] * k)),
            "tensor": Proposal(torch.ones(k, dtype=torch.int64)),
            "law of another shape": Proposal([1] * k, law[:, :5]),
            "law of one row": Proposal([1] * k, law[:1]),
            "law that is no law": Proposal([1] * k, law * 3),
            "negative law": Proposal([1] * k, law - 1),
            "nan law": Proposal([1] * k, law * float("nan")),
            "law with a negative number": Proposal([1] * k, law + moved * 2),
            "law with a nan": Proposal([1] * k, torch.where(moved < 0, float("nan"), law)),
            "law without its draft": Proposal([2] * k, law + moved),
            "law of integers": Proposal([1] * k, torch.ones(k, self.vocab, dtype=torch.int64)),
            "law that is a list": Proposal([1] * k, [[1.0]] * k),
        }
        return wrong.get(self.how, Proposal([1] * k))

    def observe(self, chunks):
        if self.how == "observe raises":
            raise RuntimeError("in observe")

    def forget(self, seq):
        if self.how == "forget raises":
            raise RuntimeError("in forget")


def refuses(spec, context):
    """A factory that cannot make its drafter."""
    raise KeyError("something is missing")


def no_drafter(spec, context):
    """A factory that makes something else."""
    return object()
