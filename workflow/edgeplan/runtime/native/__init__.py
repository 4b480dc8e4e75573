"""A cold start does these things for every step in native code: make the library's objects, fetch weights, execute.

In Python, a quarter of a preparation's time goes into the interpreter, and two threads that prepare hand it to each other at
every C call, which takes as long again. Native code needs it for neither. It interprets a tape (`tape.py`), decides nothing.

Python calls these functions (`native/src/loops`) through `entries`, and the loop over bound calls through `calls`, while other
threads have the interpreter. Whatever goes wrong is returned as a code, and Python does that step again in its own words.
"""
