"""The oneDNN runtime: executes ONNX graphs, and nothing but what a plan says (design, section 4).

Modules:

* `bands`: Bands of rows: some steps that follow each other run on a few rows of the last one's
  output at a time, depth first.
* `bringing`: Bringing parts of files into the page cache, as fast as the disk goes and with little
  of the processor.
* `candidates`: Which implementations oneDNN offers for a step, whatever layouts they take.
* `code_memory`: Memory for generated code, mapped once for all kernels.
* `cold_executor`: Executing a plan folder: the first run is the cold start that was planned, later
  runs are warm (NNV12 section 3).
* `constants`: Values of oneDNN's C enumerations (dnnl_types.h and dnnl_common_types.h of version 3;
  stable within a major version).
* `creation`: Steps to primitives ready to be bound to memory: the main one, and the conversions
  around it.
* `descriptors`: Variants say how primitives are asked for; descriptors describe the activations and
  weights of one model.
* `dnnl`: oneDNN's C API, typed: small owners of handles, every status checked.
* `eight_bits`: Steps that are computed in eight bits: convolutions and fully connected layers
  between numbers that bytes stand for.
* `executable`: A program with its files open and memory for its activations: what its steps are
  prepared from, on any processor.
* `folder`: A plan folder, whatever its kind: `plan.json` says what it is and what it was made for,
  `program.json` what is executed.
* `folder_lock`: Who may change a plan folder, and which folders within it somebody is at.
* `gpu_program`: Holds a plan of a cold start on a GPU as documents: what is launched, what weights
  are made from, who prepares what.
* `heaps`: Heaps for the threads that generate kernels, grown before a plan is opened (glibc).
* `imports`: Where a loaded shared library keeps the addresses of the C functions that it imports
  (ELF, 64 bit).
* `kernels/`: Compiled kernels: what oneDNN has no primitive for, as functions that are called from
  C.
* `lanes`: The preparation of a plan's steps on several cores: who prepares what next, also when
  somebody is late or fails.
* `layouts`: Memory layouts of activations: a plan keeps all 4-D activations inside the model in one
  home layout.
* `library`: Finding and describing the installed oneDNN library.
* `linked`: A linked program: what a cold start executes, decided when it was planned; the C calls
  themselves stand on its tape.
* `linking`: Linking: the C calls that creating a program's steps makes, written down as tables.
* `lowering`: Graphs to steps: what oneDNN can do in one primitive becomes one step.
* `memory`: Memory of a session: one anonymous region, and files mapped to be read.
* `native/`: A cold start does these things for every step in compiled code: make the library's
  objects, fetch weights, execute.
* `objects`: The library's objects of a linked program, each made once, when first needed, by
  whichever thread needs it.
* `pace`: This module sets the interpreter's pace during a cold start.
* `partitioned/`: Programs that run on two processors side by side, steps whole or split by
  channels.
* `placement`: Places for the weights of a program: in its cache in the order of execution, and in
  the session's memory.
* `plan_folder`: Plan folders of cold starts: a plan with everything that a cold start needs, so
  that it parses no model and decides nothing.
* `plan_session`: A plan that is open, whatever its kind: what all sessions have in common.
* `preloading`: The library is loaded by another thread while this one imports what uses it: both
  take as long.
* `preparation`: Preparing the steps of a linked program: create, read, transform, bind.
* `primitive_kinds`: The primitive descriptor of each kind of step, and the weights it reads.
* `primitives`: Steps to oneDNN primitive descriptors, in given layouts.
* `process`: A process that runs plans sets these things up before it opens one.
* `processor`: A processor offers kernels of steps to a pair, on memory that both share, and ways of
  waiting for each other.
* `program`: A program: which implementation each step runs, and where every activation lies.
* `ranges`: Ranges of output channels: a step cut into several that each compute a part of its
  output, from a part of its weights.
* `raw_weights`: Raw weights in the files of the model, read by their offsets, and made into what
  the primitives read.
* `reading_ahead`: Bringing weights into memory before they are fetched: they come in the order of
  execution while kernels are made.
* `renewal`: A session renews its plan folder: a cache that had to be made again, stamps of files
  that were looked at.
* `session`: Steps of a model that is run whole, from its file: a program of one lane and one
  buffer, run by the loop of all plans.
* `signatures`: Argument and result types of the C functions used: an undeclared one would cut
  64-bit handles to 32 bits.
* `streaming/`: Models that run in less memory than their weights take: weights come from the disk
  while steps run (FlexNN, section 3.4).
* `tape`: Tapes: the tables of a linked program as a list of C calls, which compiled code (`native`)
  works off.
* `tape_file`: Tapes as arrays, in memory and in a file.
* `transform`: Weights as in the ONNX file to weights as a step computes with them: normalisation
  folded, gates in oneDNN's order.
* `views`: Products of activations that read and write parts of tensors where they lie, without
  copies before and behind.
* `waiting`: Threads of OpenMP wait for each other awake for a moment, then asleep.
* `weight_cache`: The weight cache of a plan: transformed weights in one file, in the order of
  execution, each step's at a page.
* `weights`: Where the weights of a model lie in its files, and reading them from there without
  parsing the model again.
"""
