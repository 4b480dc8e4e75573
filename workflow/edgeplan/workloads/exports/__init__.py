"""Draws models as people export them: what predictors learn from, by category and in sizes that are in use."""
