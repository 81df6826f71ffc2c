"""A draft that is an ordinary small language model: a few layers of the target, or a given checkpoint, trained on the target's laws.

transformers builds and saves it, so what comes out loads wherever checkpoints load. Embedding and head stay as they are:
they are most of such a model, and texts made in minutes touch few of their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from headstart.core.errors import ConfigError, ModelError, first_line
from headstart.distill.features import Batch, Example, collate
from headstart.distill.losses import Teacher
from headstart.runtime.checkpoint import Checkpoint, convert

_RANK = 16  # of --lora
_ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")


class _LowRank(nn.Module):
    """A frozen weight plus a product of two thin ones, zero at first."""

    def __init__(self, weight: Tensor, rank: int, seed: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.a = nn.Parameter(torch.randn(rank, weight.shape[1], generator=g) * weight.shape[1] ** -0.5)
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


class SmallStudent(nn.Module):
    """A causal language model of transformers, with what it learns from."""

    passes = 1

    def __init__(self, model: Any, norm: Tensor, head: Tensor, eps: float, lora: bool, seed: int) -> None:
        super().__init__()
        self.model, self.lora, self.eps = model, lora, eps
        self.norm, self.teacher_head = norm, head
        for p in model.parameters():
            p.requires_grad_(not lora)
        for table in (model.get_input_embeddings(), model.get_output_embeddings()):
            table.weight.requires_grad_(False)
        if lora:
            self._adapt(seed)

    def _adapt(self, seed: int) -> None:
        found = [m for n, m in self.model.named_modules() if n.split(".")[-1] in _ADAPTED and isinstance(m, nn.Linear)]
        if not found:
            raise ConfigError(f"--lora finds no layers named {', '.join(_ADAPTED)} in this draft: train it whole")
        for i, linear in enumerate(found):
            parametrize.register_parametrization(linear, "weight", _LowRank(linear.weight, _RANK, seed + i))

    def laws(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Teacher, Tensor]]:
        """The rows that count, once: (states [N, hidden], head [V, hidden], teacher, weight [N])."""
        weight = batch.weight[:, 1:]
        rows = weight > 0
        out = self.model.base_model(input_ids=batch.tokens, use_cache=False).last_hidden_state[:, :-1][rows]
        states = torch.nn.functional.rms_norm(batch.states[:, :-1, -len(self.norm) :][rows], self.norm.shape, self.norm, self.eps)
        teacher = Teacher(
            states, self.teacher_head, *(of[rows] for of in (batch.lse[:, :-1], batch.tokens[:, 1:], batch.likeliest[:, :-1]))
        )
        yield out, self.model.get_output_embeddings().weight, teacher, weight[rows]

    def groups(self, rate: float) -> list[dict[str, object]]:
        """Parameters with their learning rates: those of a model that can speak already move less than those of a new head."""
        return [{"params": [p for p in self.parameters() if p.requires_grad], "lr": rate}]

    def start(self, examples: list[Example]) -> None:
        """Nothing to find out: the weights are a model's already."""

    def fixed(self) -> dict[str, Tensor]:
        """What is not trained but was found at the start: nothing."""
        return {}

    def batch(self, examples: list[Example]) -> Batch:
        """A batch of examples in this student's form."""
        return collate(examples)

    def finished(self) -> Any:
        """The transformers model, low-rank parts added to the weights they belong to."""
        if self.lora:
            for module in list(self.model.modules()):
                if parametrize.is_parametrized(module, "weight"):
                    parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
        return self.model


def pruned(checkpoint: Checkpoint, layers: int) -> Any:
    """A transformers model of `layers` of the target's layers, evenly spread, the first and the last among them. Raises ModelError."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = dict(checkpoint.config)
    total = config["num_hidden_layers"]
    if not 1 <= layers < total:
        raise ConfigError(f"--layers {layers} must be from 1 to {total - 1}: the target has {total}")
    kept = [round(i * (total - 1) / max(1, layers - 1)) for i in range(layers)] if layers > 1 else [total - 1]
    config = {k: v for k, v in config.items() if v is not None and k not in ("model_type", "architectures", "torch_dtype", "dtype")}
    config["num_hidden_layers"] = layers
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = [config["layer_types"][i] for i in kept]
    theta = config.pop("rope_theta", None)
    if theta is not None and not config.get("rope_parameters"):
        config["rope_parameters"] = {"rope_type": "default", **(config.pop("rope_scaling", None) or {}), "rope_theta": theta}
    config.setdefault("eos_token_id", checkpoint.eos_ids or None)
    try:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(checkpoint.config["model_type"], **config), dtype=torch.float32)
        model.load_state_dict(_chosen(checkpoint, kept, model.state_dict()), strict=True)
    except (KeyError, ValueError, RuntimeError) as e:
        raise ModelError(f"{checkpoint.path} cannot be cut to {layers} layers ({first_line(e)}): give --draft a small checkpoint") from None
    return model


def _chosen(checkpoint: Checkpoint, kept: list[int], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that the smaller model wants, from the layers kept."""
    out = {}
    for name in wanted:
        source = name
        if name.startswith("model.layers."):
            _, _, number, rest = name.split(".", 3)
            source = f"model.layers.{kept[int(number)]}.{rest}"
        if source == "lm_head.weight" and source not in checkpoint.tensor_names:
            source = "model.embed_tokens.weight"
        out[name] = convert(checkpoint.tensor(source), source, torch.float32, torch.device("cpu"))
    return out
