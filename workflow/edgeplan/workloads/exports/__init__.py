"""Draws models as people export them: what predictors learn from, by category and in sizes that are in use."""

from edgeplan.workloads.exports.families import FAMILIES, ExportedModel, export_models, random_inputs

__all__ = ["FAMILIES", "ExportedModel", "export_models", "random_inputs"]
