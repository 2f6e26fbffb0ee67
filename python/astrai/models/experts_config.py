"""`ExpertsConfig`: the mixture of experts that takes the MLP's place in some layers."""

from __future__ import annotations

from dataclasses import dataclass

from astrai.models.config_keys import Keys

__all__ = ["ExpertsConfig", "experts_from_gguf"]


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Numbers of a mixture of experts: each row goes through n_active of n_experts gated MLPs."""

    n_experts: int
    n_active: int
    intermediate_size: int  # of each expert
    norm_topk_prob: bool  # are the weights of a row's experts scaled to sum to 1
    shared_size: int | None = None  # intermediate size of an expert that every row goes through
    sparse_step: int = 1  # every sparse_step-th layer has experts
    dense_layers: tuple[int, ...] = ()  # layers that have none, whatever the step

    def __post_init__(self) -> None:
        if self.n_active > self.n_experts:
            raise ValueError(
                f"a row cannot go through {self.n_active} experts, there are {self.n_experts}."
            )

    def is_sparse(self, layer_id: int) -> bool:
        """Does this layer have experts?"""
        return (layer_id + 1) % self.sparse_step == 0 and layer_id not in self.dense_layers


def experts_from_gguf(
    keys: Keys, intermediate_size: int, norm_topk_prob: bool, shared_size: int | None = None
) -> ExpertsConfig:
    """The mixture that GGUF metadata describes; all layers have it. norm_topk_prob: the family's
    own, which few files spell out."""
    is_stated = keys.get("expert_weights_norm") is not None
    return ExpertsConfig(
        n_experts=keys.size("expert_count"),
        n_active=keys.size("expert_used_count"),
        intermediate_size=intermediate_size,
        norm_topk_prob=keys.flag("expert_weights_norm") if is_stated else norm_topk_prob,
        shared_size=shared_size,
    )
