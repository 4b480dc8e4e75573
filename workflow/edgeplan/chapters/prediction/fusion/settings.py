"""Declares the `fusion` section of params.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgeplan.graph.fusion_rules import Alignments


class FusionSettings(BaseModel):
    """Sets the thresholds and sizes of the detection of fusion rules (nn-Meter, section 4.1).

    Attributes:
        alpha: share of the cheaper operator's time that must be saved for a pair to count as fused (Inequality 1).
        confidence: a decision is clear when the saving is this many standard errors from the threshold.
        noise_floor: least standard error of a measured time, relative: what blocks near in time cannot show.
        rewritten_difference: relative difference in time from which a chain counts as run by a kernel of its own.
        material_share: a case whose cheaper operator takes less than this share of the other one's time cannot be told.
        max_rounds: a case still unclear after this many measurements is reported as undecided.
        cautious: whether the machine may be disturbed for as long as a measurement takes: what several cases share, what
            decides for whole models and savings beyond belief are measured three times, and few blocks are believed as far
            as Student's t allows. Takes a third to a half more time.
        classes: classes of channel counts that rules may tell apart.
        channels: a channel count to probe for every class.
        elements: elements of the activations probed once; large enough for an element-wise operator to be seen.
        blocks: repetitions of the operators under test in a network of small tensors.
        small_elements: elements of those small tensors.
        rows, features: size of the two-dimensional activations of fully connected layers.
        stage_seconds: what is not measured by then is undecided; 0: no limit.
        prior: shipped devices; the rules of the first with the same engine stand where timing decides nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.5
    confidence: Annotated[float, Field(ge=1, le=10)] = 2.5
    noise_floor: Annotated[float, Field(ge=0, le=0.1)] = 0.003
    rewritten_difference: Annotated[float, Field(gt=0, lt=1)] = 0.15
    material_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    max_rounds: Annotated[int, Field(ge=1, le=10)] = 3
    cautious: bool = False
    classes: Alignments = Alignments()
    channels: dict[str, Annotated[int, Field(ge=1)]] = {"16": 16, "4": 20, "1": 18, "<4": 12, "<1": 6}
    elements: Annotated[int, Field(ge=1000)] = 200_000
    blocks: Annotated[int, Field(ge=1, le=100)] = 24
    small_elements: Annotated[int, Field(ge=16)] = 256
    rows: Annotated[int, Field(ge=1)] = 4
    features: Annotated[int, Field(ge=1)] = 64
    stage_seconds: Annotated[float, Field(ge=0, le=86400)] = 0.0
    prior: Annotated[tuple[str, ...], Field(max_length=20)] = ()

    @model_validator(mode="after")
    def _check(self) -> FusionSettings:
        for name in self.classes.names():
            if name not in self.channels or self.classes.name(self.channels[name]) != name:
                raise ValueError(f"channels must give a channel count of class {name}")
        return self
