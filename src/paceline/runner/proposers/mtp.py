"""Drafting with the MTP head of a model."""

from paceline.runner.draft_heads.head import DraftHead, HeadWeights
from paceline.runner.draft_heads.head_drafter import HeadDrafter
from paceline.runner.draft_heads.mtp import MTPHead, MTPWeights


class Mtp(HeadDrafter):
    """Drafts with the MTP head of a model on a CPU."""

    weights = "mtp head"

    @classmethod
    def load_head(cls, weights: HeadWeights, max_model_len: int | None = None) -> DraftHead:
        assert isinstance(weights, MTPWeights), "a head of another kind"
        return MTPHead.load(weights, max_model_len)
