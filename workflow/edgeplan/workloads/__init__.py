"""This package holds the models that chapters on planning run, beside the zoo.

They are apart from `edgeplan.zoo`, whose whole folder is a dependency of measuring stages: adding a
model here runs none of them again, and no predictor learns from any.
"""
