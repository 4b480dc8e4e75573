"""Holds the models that chapters on planning run, beside the zoo, and draws models as people export them.

They are apart from `edgeplan.zoo`, which measuring stages depend on: adding a model here runs none of them again. Predictors
learn from what `exports` draws, from no other model here.
"""
