"""Detects which operators an engine runs as one, by timing pairs of them.

Modules:

* `builders`: The probes each test case compares.
* `cases`: Test cases: which probes are compared, and what their times say (nn-Meter, Inequality 1).
* `detection`: Detecting fusion rules by timing alone (nn-Meter, section 4.1): no engine's name
  occurs here.
* `pooling`: Test cases of a pair in two sizes are pooled into one decision.
* `prior`: Rules of another machine with the same engine, where timing here leaves open what fuses.
* `probes`: Black-box test networks: a stem, the operators under test, and a sink (nn-Meter, section
  4.1).
* `settings`: The `fusion` section of params.yaml.
* `verification`: Fusion rules against what an engine itself says it fuses.
"""
