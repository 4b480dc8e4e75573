"""Dispatches own OpenCL kernels: which run a step, over how many work items, and what they read; OpenCL is not imported.

No OpenCL is imported here.

Modules:

* `batches`: Steps of several images: kernels of one image are launched for each, and rows of images
  are copied out and back.
* `building`: This module builds kernels and remembers which of them a driver can build.
* `convolutions`: Which kernels run a convolution.
* `copies`: Which kernels run steps that copy: joined, cut, shuffled, transposed, or put in another
  layout or shape.
* `dispatch`: The white-box dispatcher: which kernels run a step, with which tiles and groups; a
  pure function of shapes and numbers.
* `launch`: Launches of a step are values only, the same for every OpenCL device of the same
  numbers.
* `linear`: Which kernel runs a fully connected step.
* `platforms`: Finds the OpenCL device that options name, and tells what the dispatcher asks of it.
* `pointwise`: Which kernels run steps that compute each element by itself: one activation, two, or
  one and a factor of each channel.
* `post_ops`: Post-operations as kernels take them: a program of up to four, given by integers and
  floats when a kernel is launched.
* `products`: Which kernels run what transformers have beside linear layers: products of two
  activations, and normalised rows.
* `spaces`: Tensors as kernels walk through them, whatever their layout: blocks of lanes, rows and
  pixels, with a stride of each.
* `tiles`: Tiles of kernels, and how work items are counted.
* `transforms`: Weights as a step computes with them to the layouts that kernels read
  (`runtime.transform.folded` comes before).
* `tuning`: Autotuning, offline: what the white-box dispatcher could have chosen instead, to be
  timed beside its choice.
* `widest`: The widest vectors that a driver computes right with, asked in a process of its own and
  kept for that driver.
* `windows`: Which kernels run steps that look at neighbours: pooling, normalisation over near
  channels, changes of size, softmax.
"""
