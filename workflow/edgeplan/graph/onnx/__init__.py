"""This package reads and writes ONNX files."""
