"""What every layer may use: no knowledge of models, devices or chapters."""
