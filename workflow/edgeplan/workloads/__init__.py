"""The models that chapters on planning run, beside the zoo: `edgeplan.workloads.registry` lists them.

They are apart from `edgeplan.zoo`, whose whole folder is a dependency of measuring stages: adding a
model here runs none of them again, and no predictor learns from any.
"""
