"""Drafting with an EAGLE-3 head."""

from paceline.runner.draft_heads.eagle3 import Eagle3Head
from paceline.runner.draft_heads.eagle3_folder import Eagle3Folder
from paceline.runner.draft_heads.head import DraftHead, HeadWeights
from paceline.runner.draft_heads.head_drafter import HeadDrafter


class Eagle3(HeadDrafter):
    """Drafts with an EAGLE-3 head on a CPU."""

    weights = "eagle3 head"

    @classmethod
    def load_head(cls, weights: HeadWeights, max_model_len: int | None = None) -> DraftHead:
        assert isinstance(weights, Eagle3Folder), "a head of another kind"
        return Eagle3Head.load(weights, weights.head, max_model_len=max_model_len)
