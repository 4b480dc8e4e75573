"""Builds model families, their seeded variants, and the base models behind the prior distribution (nn-Meter, section 3)."""

from edgeplan.zoo.family import Family
from edgeplan.zoo.priors import prior_models
from edgeplan.zoo.registry import FAMILIES, build_variant, variants
from edgeplan.zoo.spec import VariantSpec

__all__ = ["FAMILIES", "Family", "VariantSpec", "build_variant", "prior_models", "variants"]
