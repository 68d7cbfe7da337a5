"""What a later process reads from the cache computes what the first one computed.

A function stands in the compiled code of each of its callers, and which of the copies runs depends on what
has been loaded before: a copy that LLVM translates wrongly may first be met in the second process.
"""

import os
import subprocess
import sys

SCRIPT = """
import hashlib
import ml_dtypes
import numpy as np
import softcarry as sc

rng = np.random.default_rng(0)
for tq in (1, 2, 17, 33, 65):
    q, k, v = (rng.standard_normal((1, 2, t, 32)).astype(np.float32) for t in (tq, 100, 100))
    bias, mask = rng.standard_normal((tq, 100)), rng.random((tq, 100)) < 0.7
    answers = []
    for dtype in (np.float64, np.float32, ml_dtypes.bfloat16, np.float16):
        # The same numbers in every dtype: the answers must be the same to the bit.
        same = bias.astype(np.float16).astype(ml_dtypes.bfloat16).astype(dtype)
        answers.append(sc.attention(q, k, v, bias=same, mask=mask, causal=True))
        assert np.array_equal(answers[-1], answers[0]), (tq, dtype)
    for options in ({"mask": mask}, {"window": (30, 5)}, {"softcap": 5.0}, {"sinks": np.ones(2, np.float32)}):
        answers.append(sc.attention(q, k, v, **options))
    print(tq, hashlib.sha256(b"".join(x.tobytes() for x in answers)).hexdigest())
"""


def test_the_second_process_computes_what_the_first_did(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert len(outputs[0].splitlines()) == 5
    assert outputs[1] == outputs[0]
