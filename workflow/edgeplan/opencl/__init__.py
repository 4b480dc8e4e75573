"""Dispatches own OpenCL kernels: which run a step, over how many work items, and what they read.

No OpenCL is imported here.

Modules:

* `batches`: Dispatches steps of several images: one image's kernels are launched for each, rows of
  images copied out and back.
* `building`: This module builds kernels and remembers which of them a driver can build.
* `convolutions`: Chooses the kernels that run a convolution.
* `copies`: Chooses kernels for steps that copy: joined, cut, shuffled, transposed, or put in
  another layout or shape.
* `dispatch`: Chooses, as a white-box dispatcher, the kernels that run a step, with tiles and
  groups, from shapes and numbers alone.
* `launch`: Launches of a step are values only, the same for every OpenCL device of the same
  numbers.
* `linear`: Chooses the kernel that runs a fully connected step.
* `platforms`: Finds the OpenCL device that options name, and tells what the dispatcher asks of it.
* `pointwise`: Chooses kernels for steps that compute each element by itself: one activation, two,
  or one and a factor a channel.
* `post_ops`: Encodes post-operations for kernels: up to four, given by integers and floats when a
  kernel is launched.
* `processor`: A processor that runs the kernels of `sources` dispatches steps alike, whichever
  driver builds and launches them.
* `products`: Chooses kernels for what transformers have beside linear layers: products of two
  activations, and normalised rows.
* `spaces`: Describes tensors as kernels walk through them, whatever their layout: blocks of lanes,
  rows and pixels, with strides.
* `tiles`: Sizes tiles of kernels and counts work items.
* `transforms`: Transforms weights as a step computes with them to the layouts that kernels read,
  after `runtime.transform.folded`.
* `tuning`: Lists for offline autotuning what the white-box dispatcher could have chosen instead, to
  be timed beside its choice.
* `widest`: Finds the widest vectors that a driver computes right with, asked in a process of its
  own and kept for that driver.
* `windows`: Chooses kernels for steps that look at neighbours: pooling, normalisation over near
  channels, resizing, softmax.
"""
