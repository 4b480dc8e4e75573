"""Adapts predictors to a new device in a minute, from the predictor of an old one."""
