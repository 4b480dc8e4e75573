"""Every layer may use these modules: they know nothing of models, devices or chapters."""
