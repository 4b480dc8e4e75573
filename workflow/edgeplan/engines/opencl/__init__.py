"""An OpenCL device by itself, through the package's own kernels: the second processor of a pair, measured alone."""

from __future__ import annotations

from edgeplan.engines.description import Description

ENGINE = Description(
    "opencl",
    "pip install 'edgeplan[runtime,partition]'",
    "edgeplan.engines.opencl.session:Opencl",
    processor="edgeplan.processors.opencl:OpenclProcessor",
)
