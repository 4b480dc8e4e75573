"""Tests what others add against what edgeplan asks of it. They need pytest.

Modules:

* `engines`: This contract holds an engine to edgeplan's demands by tests: subclass `EngineContract`
  and name the engine.
* `processors`: This module holds what edgeplan asks of a processor of a pair, as tests: subclass
  `ProcessorContract` and name the engine.
* `settings`: This contract holds a setting that is started cold to edgeplan's demands: subclass
  `SettingContract` and name the setting.
"""
