"""Builds model families, their seeded variants, and the base models behind the prior distribution (nn-Meter, section 3)."""

from edgeplan.zoo.family import Family, VariantSpec
from edgeplan.zoo.registry import FAMILIES, build_variant, prior_models, variants

__all__ = ["FAMILIES", "Family", "VariantSpec", "build_variant", "prior_models", "variants"]
