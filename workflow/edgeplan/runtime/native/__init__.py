"""Words that Python and the native loops (`native/src/loops`) share, and the loop over bound calls."""
