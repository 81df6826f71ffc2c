"""The head in its training form: whole texts at once, unrolled for several drafts. `models/head.py` runs what comes out of it.

A head at work goes on from its own states, so it is trained on them (training-time test of EAGLE-3): in pass j the state at p is
what pass j - 1 made at p - 1, and a row sees the true entries up to p - j and its own chain after them. Every row thus
learns what it will meet as draft j + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.distill.features import Batch, Example, collate
from headstart.distill.losses import Teacher
from headstart.models.head import HeadConfig
from headstart.ops.rope import frequencies, rotate, rotation

_FIT_ROWS = 60_000  # of the regressions at the start
_SHARP = 12.0  # score of a head for its own position at the start: others get next to nothing


@dataclass(frozen=True)
class Target:
    """What the head takes over from its target, frozen."""

    embedding: Tensor  # [vocab, hidden]
    norm: Tensor  # [hidden], before the target's head
    head: Tensor  # [draft vocab, hidden]: the rows of the kept ids
    ids: Tensor  # [draft vocab]
    eps: float
    gates: tuple[Tensor, Tensor, Tensor] | None = None  # gate, up and the norm before them of the target's last layer


@dataclass(frozen=True)
class _Rows:
    """Rows of texts one after the other, for the regressions; states are scaled."""

    states: Tensor  # [N, taps * hidden] at the position
    last: Tensor  # [N, hidden] the last of them
    next: Tensor  # [N, hidden] the last state at the next position
    first: Tensor  # [N] whether a text begins here
    reads: Callable[[Tensor], Tensor]  # what attention reads, [N, 2 hidden], given states to begin with [N, hidden]


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    """W [out, in] that brings x W^T next to y, by least squares with a little weight decay."""
    gram = x.T @ x
    gram += 1e-3 * gram.diagonal().mean() * torch.eye(len(gram))
    return torch.linalg.solve(gram, x.T @ y).T


class HeadStudent(nn.Module):
    """Parameters under the names of the speculators layout, in scaled form: `exported` undoes the scales.

    Hidden states have dimensions a thousand times as large as others. The projections that read or write them are trained for
    states divided by `read_scale` and `write_scale`, so that one learning rate fits all.
    """

    read_scale: Tensor
    write_scale: Tensor

    def __init__(self, config: HeadConfig, target: Target, passes: int, seed: int) -> None:
        super().__init__()
        self.config, self.target, self.passes = config, target, passes
        c = config.layer
        g = torch.Generator().manual_seed(seed)
        new = lambda *shape, std=0.02: nn.Parameter(torch.randn(*shape, generator=g) * std)  # noqa: E731
        queries, keys, wide = c.heads * c.head_dim, c.kv_heads * c.head_dim, len(config.taps) * config.target_hidden
        self.fc = new(c.hidden, wide)
        self.q, self.k, self.v = new(queries, 2 * c.hidden), new(keys, 2 * c.hidden), new(keys, 2 * c.hidden)
        self.o, self.gate, self.up = new(c.hidden, queries, std=0.0), new(c.intermediate, c.hidden), new(c.intermediate, c.hidden)
        self.down = new(c.hidden, c.intermediate, std=0.0)
        self.embed_norm, self.state_norm, self.mlp_norm = (nn.Parameter(torch.ones(c.hidden)) for _ in range(3))
        if target.gates is not None:  # they tell apart what the target found worth telling apart
            self.gate, self.up, self.mlp_norm = (nn.Parameter(t.clone()) for t in target.gates)
        self.register_buffer("read_scale", torch.ones(wide))
        self.register_buffer("write_scale", torch.ones(c.hidden))
        self.inv_freq = frequencies(c.head_dim, c.rope_theta, c.rope_scaling)
        entry = torch.full((c.vocab_size,), -1)
        entry[target.ids] = torch.arange(len(target.ids))
        self.entry = entry  # id -> entry of the head's vocabulary, -1 outside

    # -- the start -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def start(self, examples: list[Example]) -> None:
        """Begin as the best guess of the target's next last state that linear algebra finds.

        The residual stream begins as the last state itself (with what the other layers add), in the first pass the target's and
        later the head's own. Attention heads whose queries and keys hardly vary see nothing but their own row, and map it
        and the embedding to the change towards the next state; then `down` maps what the gates of the MLP make of that to what is
        still missing. Each is a ridge regression over the rows of all passes, so that the head's own states are met from the start.
        """
        rows = self._rows(examples)
        wide, h = self.config.target_hidden, self.config.layer.hidden
        others = rows.states[:, :-wide]
        self.fc.zero_()
        self.fc[:, -wide:] = torch.eye(h)  # scaled on both sides: the last state as it is
        change = _ridge(torch.cat((others, rows.reads(rows.last)), 1), rows.next - rows.last)
        self.fc[:, :-wide] = change[:, : others.shape[1]]
        move = change[:, others.shape[1] :]
        for _ in range(2):
            passes = self._unrolled(rows, move)
            read = torch.cat([rows.reads(state)[kept] for state, kept in passes])
            missing = torch.cat([(rows.next - state)[kept] for state, kept in passes])
            move = _ridge(read, missing)
        self._see_themselves(read, move)
        passes = self._unrolled(rows, move)
        made = [(state + rows.reads(state) @ move.T, kept) for state, kept in passes]
        gates = torch.cat([self._gates(x[kept] * self.write_scale) for x, kept in made])
        self.down.copy_(_ridge(gates, torch.cat([(rows.next - x)[kept] for x, kept in made])))

    def _unrolled(self, rows: _Rows, move: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each pass the scaled states that its rows begin with, and which rows have one: as `laws` unrolls, attention left out."""
        state = rows.states @ self.fc.T
        kept = torch.ones(len(state), dtype=torch.bool)
        out = []
        for _ in range(self.passes):
            out.append((state, kept))
            state = (state + rows.reads(state) @ move.T).roll(1, 0)
            kept = kept.roll(1, 0) & ~rows.first
        return out

    def _gates(self, x: Tensor) -> Tensor:
        m = self._normed(x, self.mlp_norm)
        return F.silu(m @ self.gate.T) * (m @ self.up.T)

    def _see_themselves(self, read: Tensor, move: Tensor) -> None:
        """Give the first heads `move`, and queries and keys that fit their own position best."""
        c, h = self.config.layer, self.config.layer.hidden
        own = min(c.kv_heads, -(-h // c.head_dim))
        group, width = c.heads // c.kv_heads, min(own * c.head_dim, h)
        steady = _ridge(read, torch.ones(len(read), 1))[0]  # what is nearly 1 everywhere
        shape = torch.zeros(c.head_dim)
        fast = min(4, c.head_dim // 2)  # the pairs that turn fastest tell positions apart best
        shape[:fast] = math.sqrt(_SHARP * math.sqrt(c.head_dim) / fast)
        self.q[: own * group * c.head_dim] = (shape[:, None] * steady).repeat(own * group, 1)
        self.k[: own * c.head_dim] = (shape[:, None] * steady).repeat(own, 1)
        self.v[: own * c.head_dim] = 0
        if width == h:
            u, values = torch.eye(h), move
        else:  # fewer heads than the state is wide: the most important directions
            u, s, vt = torch.linalg.svd(move, full_matrices=False)
            values = s[:width, None] * vt[:width]
        self.v[:width] = values
        self.o.zero_()
        for head in range(own * group):  # the query heads of one key head share its values
            at = head // group * c.head_dim
            part = u[:, at : min(at + c.head_dim, width)] / group
            self.o[:, head * c.head_dim : head * c.head_dim + part.shape[1]] = part

    def _rows(self, examples: list[Example]) -> _Rows:
        """The rows to fit, of what the target wrote, up to `_FIT_ROWS`; sets the scales."""
        some: list[tuple[Example, int]] = []
        count = 0
        for example in examples:
            begin = max(1, example.start - 2)  # not the first row: its states are of another size than all others
            if count < _FIT_ROWS and begin < len(example.tokens) - 1:
                some.append((example, begin))
                count += len(example.tokens) - 1 - begin
        h = self.config.target_hidden
        states = torch.cat([e.states[at:-1].float() for e, at in some])
        after = torch.cat([e.states[at + 1 :, -h:].float() for e, at in some])
        self.read_scale.copy_(states.std(0).clamp_min(1e-3))
        self.read_scale[-h:] = after.std(0).clamp_min(1e-3)
        self.write_scale.copy_(self.read_scale[-h:])
        first = torch.zeros(len(states), dtype=torch.bool)
        row = 0
        for e, at in some:
            first[row] = True
            row += len(e.tokens) - 1 - at
        embedded = self._normed(self.target.embedding[torch.cat([e.tokens[at + 1 :] for e, at in some])], self.embed_norm)
        scaled, last = states / self.read_scale, states[:, -h:] / self.write_scale
        normed = lambda x: self._normed(x * self.write_scale, self.state_norm)  # noqa: E731
        return _Rows(scaled, last, after / self.write_scale, first, lambda state: torch.cat((embedded, normed(state)), 1))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self.target.eps)

    # -- training ------------------------------------------------------------------------------------------------

    def laws(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Teacher, Tensor]]:
        """For each draft position the rows that count: (states [N, hidden], head [V', hidden], teacher, weight [N])."""
        h = self.config.target_hidden
        n = batch.tokens.shape[1]
        after, target_states = batch.tokens[:, 1:], batch.states[:, 1:, -h:]  # row p reads token p + 1 and predicts p + 2
        weight = torch.cat((batch.weight[:, 2:], batch.weight.new_zeros(len(batch.tokens), 1)), 1)  # [B, n - 1], of token p + 2
        chosen = torch.cat((self.entry[batch.tokens[:, 2:]], weight.new_full((len(weight), 1), -1).long()), 1)
        embedded = self._normed(self.target.embedding[after], self.embed_norm)
        state = F.linear(batch.states[:, :-1] / self.read_scale, self.fc) * self.write_scale
        cos, sin = rotation(torch.arange(n - 1), self.inv_freq, torch.float32)
        past: list[tuple[Tensor, Tensor]] = []
        for j in range(self.passes):
            out = self._layer(embedded, state, cos, sin, past)
            w = weight.clone()
            w[:, :j] = 0  # no draft j + 1 so early
            rows = w > 0
            if not bool(rows.any()):
                return
            last = self._normed(out[rows], self.target.norm)
            teacher_states = self._normed(target_states[rows], self.target.norm)
            teacher = Teacher(
                teacher_states, self.target.head, batch.lse[:, 1:][rows], chosen[rows], self.entry[batch.likeliest[:, 1:][rows]]
            )
            yield last, self.target.head, teacher, w[rows]
            state = torch.cat((out.new_zeros(len(out), 1, out.shape[2]), out[:, :-1]), 1)

    def _layer(self, embedded: Tensor, state: Tensor, cos: Tensor, sin: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One pass of the layer over [B, n, hidden]; its keys and values join `past`."""
        c = self.config.layer
        b, n, _ = state.shape
        read = torch.cat((embedded, self._normed(state, self.state_norm)), -1)
        turn = lambda x, heads: rotate(x.view(b * n, heads, c.head_dim), *(t.repeat(b, 1, 1) for t in (cos, sin)))  # noqa: E731
        shape = lambda x, heads: x.view(b, n, heads, c.head_dim).transpose(1, 2)  # noqa: E731
        q = shape(turn(F.linear(read, self.q), c.heads), c.heads)
        k = shape(turn(F.linear(read, self.k), c.kv_heads), c.kv_heads)
        v = shape(F.linear(read, self.v), c.kv_heads)
        group = c.heads // c.kv_heads
        past.append((k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
        x = state + F.linear(self._attend(q, past).transpose(1, 2).reshape(b, n, -1), self.o) * self.write_scale
        m = self._normed(x, self.mlp_norm)
        return x + F.linear(F.silu(F.linear(m, self.gate)) * F.linear(m, self.up), self.down) * self.write_scale

    @staticmethod
    def _attend(q: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Attention in pass j = len(past) - 1: true entries up to p - j, then one entry of each later pass, up to this one's at p."""
        j, n = len(past) - 1, q.shape[2]
        scale = q.shape[-1] ** -0.5
        scores = q @ past[0][0].transpose(2, 3) * scale
        later = torch.ones(n, n, dtype=torch.bool).triu_(1 - j)
        scores = scores.masked_fill(later, float("-inf"))
        chain = []
        for i in range(1, j + 1):
            k = _shifted(past[i][0], j - i)
            chain.append((q * k).sum(-1, keepdim=True) * scale)
        weights = torch.softmax(torch.cat((scores, *chain), -1), -1)
        out = weights[..., :n] @ past[0][1]
        for i in range(1, j + 1):
            out = out + weights[..., n + i - 1 : n + i] * _shifted(past[i][1], j - i)
        return out

    # -- what comes out ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def exported(self) -> dict[str, Tensor]:
        """The tensors of the speculators layout, without the vocabulary's maps."""
        out, layer = self.write_scale[:, None], "layers.0."
        return {
            "fc.weight": out * self.fc / self.read_scale,
            f"{layer}input_layernorm.weight": self.embed_norm,
            f"{layer}hidden_norm.weight": self.state_norm,
            f"{layer}post_attention_layernorm.weight": self.mlp_norm,
            f"{layer}self_attn.q_proj.weight": self.q,
            f"{layer}self_attn.k_proj.weight": self.k,
            f"{layer}self_attn.v_proj.weight": self.v,
            f"{layer}self_attn.o_proj.weight": out * self.o,
            f"{layer}mlp.gate_proj.weight": self.gate,
            f"{layer}mlp.up_proj.weight": self.up,
            f"{layer}mlp.down_proj.weight": out * self.down,
            "norm.weight": self.target.norm,
            "lm_head.weight": self.target.head,
        }

    def groups(self, rate: float) -> list[dict[str, object]]:
        """Parameters with their learning rates: what reads the states straight has to move little."""
        slow = [self.fc]
        rest = [p for p in self.parameters() if p is not self.fc]
        return [{"params": slow, "lr": rate / 16}, {"params": rest, "lr": rate}]

    def fixed(self) -> dict[str, Tensor]:
        """What is not trained but was found at the start."""
        return {"read_scale": self.read_scale, "write_scale": self.write_scale}

    def batch(self, examples: list[Example]) -> Batch:
        """A batch of examples in this student's form."""
        return collate(examples)


def _shifted(x: Tensor, by: int) -> Tensor:
    """x [B, heads, n, d] moved `by` positions to the right, zeros before."""
    return x if by == 0 else F.pad(x[:, :, :-by], (0, 0, by, 0))
