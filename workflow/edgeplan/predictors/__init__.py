"""Predictors: features, gradient-boosted trees per kernel kind and implementation, whole-model prediction."""
