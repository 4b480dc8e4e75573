"""Measures on boards: machines that a command reaches, on which a worker measures for this host.

Modules:

* `bundle`: A bundle is all that a worker needs, for one kind of board, in one archive: wheels with
  their hashes and a manifest.
* `checks`: Checks a row from a board against what was asked for: a worker is believed its times,
  and nothing else.
* `client`: Asks a board's worker for batches, on the host's side, and goes on where a link was cut.
* `deploy`: Deploying brings edgeplan's worker to a board that may have no way to an index:
  `edgeplan device deploy`.
* `install`: Runs on a board, by whatever Python is there, and installs a bundle that comes on
  standard input.
* `journal`: Keeps the journal of a board: each row is in it, synced, before it is sent, so that a
  link that is cut loses none.
* `lines`: Reads lines of bounded length from a descriptor.
* `link`: Links this host to a worker: a process whose input and output are the worker's, whose
  error output tells of failures.
* `sources`: Digests the sources that decide what a board's times mean: host and board must agree.
* `wheels`: Picks the wheels that a worker needs on a board from the hashed lock, for its Python,
  processor and C library.
* `wire`: Defines the lines between a host and a worker: one JSON document each, of the types below,
  and nothing else.
* `worker`: The worker measures on the board that it runs on, for a host that speaks to it in lines:
  `edgeplan worker`.
"""
