# The environment of the locks with the package. Predictions and plans, on models of yours:
#   docker build -t edgeplan .
#   docker run --rm -v "$PWD:/models" edgeplan edgeplan predict /models/model.onnx
# The pipeline, in a clone (measured is the machine that runs the container):
#   docker run --rm -v "$PWD:/clone" -w /clone edgeplan make reproduce VENV=/edgeplan/.venv
ARG BASE=docker.io/library/python:3.11-slim
FROM ${BASE}

RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make util-linux libgomp1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /edgeplan
# The locks first: the environment is a layer that changes of the code leave alone.
COPY requirements.lock requirements-no-deps.lock requirements-zig.lock ./
RUN python -m venv .venv \
    && .venv/bin/pip install --no-cache-dir --require-hashes -r requirements.lock \
    && .venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements-no-deps.lock
COPY . .
# The compiler stays: a clone builds its own library.
RUN .venv/bin/pip install --no-cache-dir --require-hashes -r requirements-zig.lock \
    && .venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    && cat requirements.lock requirements-no-deps.lock > .venv/requirements.lock

ENV PATH=/edgeplan/.venv/bin:$PATH PYTHONUTF8=1
CMD ["edgeplan", "--help"]
