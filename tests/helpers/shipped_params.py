"""The settings that tests build on: those of the shipped results, whatever a run has left in the checkout's params.yaml."""

from pathlib import Path

PARAMS_FILE = Path(__file__).with_name("params.yaml")
