"""Profiles of cold starts, measured on the runtime that will execute the plans (NNV12, section 3.2)."""
