"""Adapts predictors to a new device in a minute, from the predictor of an old one.

Modules:

* `chapter`: Declares the chapter on adaptation: what it keeps of devices, computes and shows.
* `evaluation/`: The chapter's tables, figures and page are made from the ladder.
* `kept`: A device's measurements are kept in one folder, from whichever machine:
  `data/transfer/<device>`.
* `ladder`: Climbs the ladder of budgets: predictors of a new device from so many seconds of
  measuring, adapted and from scratch.
* `settings`: Declares the `adaptation` section of params.yaml.
* `stages/`: Runs the stages of the chapter on adaptation.
"""
