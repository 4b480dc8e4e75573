"""The chapter on adaptation: a new device in a minute, from the predictor of an old one.

Modules:

* `chapter`: The chapter on adaptation: what it keeps of devices, computes and shows.
* `evaluation/`: The chapter's tables, figures and page are made from the ladder.
* `kept`: A device's measurements are kept in one folder, from whichever machine:
  `data/transfer/<device>`.
* `ladder`: The ladder of budgets: predictors of a new device from so many seconds of measuring,
  adapted and from scratch.
* `settings`: The `adaptation` section of params.yaml.
* `stages/`: The stages of the chapter.
"""
