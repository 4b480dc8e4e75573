"""This package reads and writes ONNX files.

Modules:

* `branches`: Branches that depend on data: both are computed, and the condition picks among what
  they write.
* `chosen`: A TopK of constants is constant, too: the optimizer folds no node of several outputs.
* `compare`: A prepared model held against the original, on ONNX Runtime.
* `constants`: Constants of an ONNX file: what they are made of, whether the file holds as much as
  their shape says, and their values.
* `contents`: An ONNX file's contents are checked once before a graph is made of it: later code
  takes all of this for granted.
* `einsum`: Einsum with a fixed equation as products of matrices, sums and transpositions, which
  preparation writes.
* `names`: A model file whose nodes bear the names of the graph's operators, so that what an engine
  says of nodes can be understood.
* `nodes`: Nodes and constants of a graph as preparation writes them anew.
* `old_softmax`: Softmax as it was before opset 13: over an axis and all behind it together.
* `opsets`: Nodes of opsets 1 to 6 as opset 7 writes them, and sums of many as additions.
* `patterns`: Layers that exporters write as arithmetic, as the operators that ONNX has for them:
  GELU in both forms, layer normalisation.
* `prepare`: Preparation turns an exporter's file into a model of static shape without shape
  arithmetic.
* `quantised`: Quantised operators as preparation writes them: numbers of bytes, what is computed
  from these, and bytes of the result.
* `read`: ONNX files, which are untrusted, to graphs.
* `scalers`: Scaler of ONNX's domain of classical learning, which exporters put before networks: a
  difference and a product.
* `shapes`: Shapes of all tensors of an ONNX file, by ONNX's own checker and shape inference.
* `stored`: Weights that a file holds in fewer bytes than the numbers that operators read: halves
  behind a Cast, bytes behind scales.
* `write`: Graphs to ONNX models with seeded random weights.
"""
