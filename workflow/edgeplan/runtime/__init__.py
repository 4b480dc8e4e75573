"""The oneDNN runtime: executes ONNX graphs, and nothing but what a plan says (design, section 4)."""
