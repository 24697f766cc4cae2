"""What every Python that Spark starts does first: leave Spark's own archives aside.

Spark puts them before all else on the path, and Python compiles what it takes from an archive anew in each
process: half a second for every worker. The same files are installed, and those are compiled already.
"""

import sys

sys.path[:] = [each for each in sys.path if "/pyspark/" not in each or not each.endswith((".zip", ".jar"))]
