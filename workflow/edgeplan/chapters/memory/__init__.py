"""The chapter on memory: a model in a fraction of the memory that its weights take (FlexNN, MobiCom 2024)."""
