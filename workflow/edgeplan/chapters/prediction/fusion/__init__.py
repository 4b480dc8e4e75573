"""Detects which operators an engine runs as one, by timing pairs of them.

Modules:

* `builders`: Builds the probes that each test case compares.
* `cases`: Describes test cases: which probes are compared, and what their times say (nn-Meter,
  Inequality 1).
* `detection`: Detects fusion rules by timing alone (nn-Meter, section 4.1): no engine's name occurs
  here.
* `pooling`: Pools the test cases of a pair in two sizes into one decision.
* `prior`: Takes rules of another machine with the same engine where timing here leaves open what
  fuses.
* `probes`: Builds black-box test networks: a stem, the operators under test, and a sink (nn-Meter,
  section 4.1).
* `settings`: Declares the `fusion` section of params.yaml.
* `verification`: Verifies fusion rules against what an engine itself says it fuses.
"""
