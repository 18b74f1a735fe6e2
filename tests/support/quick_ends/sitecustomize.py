"""Found by interpreters that tests start, most of which run a short program that imports torch. There is no
garbage: it is hardly looked for meanwhile, a tenth of the import, nor at the end, a third of the program.
Functions at exit run before."""

import atexit
import gc

gc.set_threshold(100_000, 20, 20)
atexit.register(gc.freeze)
