"""Found by interpreters that tests start: their last collection of garbage, a third of what a short program
that imports torch takes, has nothing to look at. Functions at exit run before."""

import atexit
import gc

atexit.register(gc.freeze)
