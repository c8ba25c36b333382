"""``import cuplate`` against ``import numpy``, each in fresh processes, interleaved in random order.

Goal: at most half of NumPy's time.
"""

from __future__ import annotations

import random
import sys

from measuring import Goal, child_environment, print_rows, ratio, read_options, run_child, start, summary

STATEMENTS = {
    "import cuplate": "import cuplate",
    "import numpy": "import numpy",
    "from cuplate import specialize, Array": "from cuplate import specialize, Array",
    "import one decorated function": "from cuplate.kernels import matmul_epilogue",
    "nothing": "pass",
}
CHILD = """
import json, time
begin = time.perf_counter()
{statement}
print(json.dumps(dict(ms=(time.perf_counter() - begin) * 1e3)))
"""


def main() -> int:
    options = read_options(__doc__)
    result = start("import_time", options)
    rounds = 2 if options.quick else 25
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for i in range(rounds + 1):
        for name in random.sample(list(STATEMENTS), len(STATEMENTS)):
            found = run_child(["-c", CHILD.format(statement=STATEMENTS[name])], child_environment())
            if i:  # the first round wrote the bytecode
                times[name].append(found["ms"])
    result.rows = [summary(name, values, "ms") for name, values in times.items()]
    print_rows(result.rows)
    compared = ratio(times["import cuplate"], times["import numpy"])
    result.goals.append(Goal("import cuplate / import numpy", compared.worse, 0.5))
    return result.finish(options)


if __name__ == "__main__":
    sys.exit(main())
