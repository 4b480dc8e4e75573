"""Operators stand in a file a family, which tells how each is read, checked, costed, named and lowered to steps.

Modules:

* `activations`: Element-wise operators of one input.
* `arithmetic`: Element-wise operators of two inputs, which are broadcast as numpy broadcasts.
* `base`: A specification holds the package's knowledge of an ONNX operator as one value.
* `compiled`: Operators that run as compiled kernels, and those that do where their tensors are not
  of float32.
* `convolutions`: These operators are convolutions and transposed convolutions.
* `copies`: Operators that copy parts: joined, cut, padded, repeated, picked.
* `normalisations`: These operators are normalisations and softmax.
* `pooling`: Pooling: windows, and the whole image.
* `products`: Products of matrices: fully connected layers, and products of any two operands.
* `quantising`: Operators between numbers and bytes that stand for them: each byte, or integer, is
  (value - zero point) x scale.
* `recurrent`: These operators are recurrent layers (LSTM, GRU, RNN).
* `reductions`: Means, sums and extremes over axes.
* `registry`: This registry lists every operator; a new one is a value in the file of its family, a
  new family a file and a line here.
* `resizing`: Changes of size: oneDNN's resampling where it picks and weighs pixels as ONNX does,
  else matrices.
* `selecting`: These operators select elements of an axis, or of a matrix, by order or by place.
* `shapes`: Operators that change the shape alone, or the order of axes.
* `singles`: Single operators, drawn to be sampled: what one reads and writes around a feature map
  of a drawn shape.
* `windows`: Convolutions and poolings share windows that slide over one axis, two or three.
"""
