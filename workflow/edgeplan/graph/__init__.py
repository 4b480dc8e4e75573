"""Neural networks are static graphs of operators here: they are read, costed, and split into kernels.

Modules:

* `axis_matrices`: Axis matrices replace steps that oneDNN has no primitive for: the places along
  one axis are mixed by fixed weights.
* `batches`: Changes the batch of a graph: networks for one image become networks for several.
* `blocks`: Blocks of numbers: all that a compiled kernel knows of the tensors that it works on.
* `builder`: A small builder: each method appends one operator, infers its output shape, and returns
  the output's name.
* `checks`: These checks hold a graph to the assumptions of costs and predictors: shapes are known,
  operators fit their tensors.
* `cost`: This module counts the costs of operators and graphs on paper: multiply-adds, parameters,
  bytes moved.
* `element_types`: Models whose numbers are not single precision: predictors, and the kernels of the
  runtime, are of float32 alone.
* `external_data`: Files beside a model that hold its tensors (ONNX's external data): which they
  are, and where in them a tensor lies.
* `file_kinds`: Files that are no ONNX model are told by their first bytes: most are models of other
  tools, or no models at all.
* `fusion_rules`: Fusion rules as a document: the paper's form, extended by what real engines need.
* `index_limits`: Which integers a model's inputs may hold: those that pick places of an axis stay
  below its size.
* `ir`: The graph every chapter works on: operators with static shapes, in topological order.
* `kernels`: Kernels: the operators a device runs as one unit, with the configuration that decides
  what they cost.
* `kinds`: The field's names for operators: `conv`, `dwconv`, `relu6` ... as nn-Meter's fusion rules
  and kernels use them.
* `model_file`: Reading the message of an ONNX file; whatever else a path may lead to is said by
  name.
* `onnx/`: This package reads and writes ONNX files.
* `operators/`: Operators stand in a file a family, which tells how each is read, checked, costed,
  named and lowered to steps.
* `parts`: The steps of one operator, being put together.
* `shapes`: Shapes of tensors, and the bytes of their elements.
* `simplify`: The optimisations every framework makes whatever its backend (nn-Meter, section 2.2),
  made before a graph is split or costed.
* `splitting`: Splitting a graph into the kernels a device runs (nn-Meter, Algorithm 1).
* `steps`: Steps are executed by the runtime; each is a fused group of operators.
"""
