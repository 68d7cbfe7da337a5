"""Threads change nothing in a result: their number, several callers at once, and a process that forks."""

import math
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import softcarry as sc
from row_cases import DTYPES, assert_same, pattern

SHAPES = ((1, 1), (1, 300001), (2, 70001), (3, 40000), (7, 16385), (64, 5000), (5000, 65), (40000, 3))


@pytest.fixture(autouse=True)
def _number_of_threads():
    before = sc.get_num_threads()
    yield
    sc.set_num_threads(before)


def scores_of(shape, dtype):
    return pattern("wide", math.prod(shape), DTYPES[dtype]).reshape(shape)


def everything(x, axis=-1):
    """Results of every function, as a flat list of arrays."""
    n = x.shape[axis]
    shape = tuple(1 if a == axis % x.ndim else size for a, size in enumerate(x.shape))
    targets = np.full(shape, n // 3)
    top = sc.softmax_topk(x, min(n, 20), axis=axis)
    logprobs = sc.logprobs(x, targets, axis=axis, top_k=min(n, 3))
    results = [sc.logsumexp(x, axis=axis), sc.softmax(x, axis=axis), sc.log_softmax(x, axis=axis)]
    return [*results, *top, top.scores, top.carry.m, top.carry.l, *logprobs]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_number_of_threads_does_not_show(dtype, shape):
    x = scores_of(shape, dtype)
    for axis in (0, 1) if x.size < 400000 else (1,):
        sc.set_num_threads(1)
        want = everything(x, axis)
        for count in (2, 3, 5):
            sc.set_num_threads(count)
            assert sc.get_num_threads() == count
            for got, same in zip(everything(x, axis), want, strict=True):
                assert_same(got, same)


def test_layouts_other_than_rows_in_order():
    x = scores_of((3, 100000), "float32")
    for view in (x.T, x[::-1, ::-1], x[:, ::3], np.broadcast_to(x[0], (5, 100000))):
        for axis in (0, 1):
            sc.set_num_threads(1)
            want = sc.logsumexp(view, axis=axis), sc.softmax(view, axis=axis)
            sc.set_num_threads(3)
            assert_same(sc.logsumexp(view, axis=axis), want[0])
            assert_same(sc.softmax(view, axis=axis), want[1])


def test_several_callers_at_once():
    arrays = [scores_of(shape, dtype) for shape in ((2, 70001), (300, 900)) for dtype in DTYPES]
    sc.set_num_threads(1)
    want = [everything(x) for x in arrays]
    sc.set_num_threads(3)
    with ThreadPoolExecutor(6) as callers:
        for _ in range(4):
            for got, same in zip(callers.map(everything, arrays), want, strict=True):
                for a, b in zip(got, same, strict=True):
                    assert_same(a, b)


def test_the_number_may_change_while_others_compute():
    x = scores_of((4, 50000), "float32")
    want = sc.softmax(x)

    def change(step):
        if step % 2:
            sc.set_num_threads(1 + step % 5)
        return sc.softmax(x)

    with ThreadPoolExecutor(4) as callers:
        for got in callers.map(change, range(60)):
            assert_same(got, want)


def test_calls_from_threads_of_torch_tensors():
    x = torch.from_numpy(scores_of((3, 40000), "float32"))
    want = sc.log_softmax(x)
    with ThreadPoolExecutor(4) as callers:
        for got in callers.map(sc.log_softmax, [x] * 16):
            assert_same(got, want)


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_computes():
    """The pool of the parent has no threads in the child: it must start its own, not wait for them."""
    done = run_python("""
        import os, signal, sys
        import numpy as np
        import softcarry as sc

        signal.alarm(50)
        sc.set_num_threads(3)
        x = np.random.default_rng(0).normal(size=(3, 200000)).astype(np.float32)
        want = sc.softmax(x), sc.logsumexp(x)

        def same():
            return np.array_equal(sc.softmax(x), want[0]) and np.array_equal(sc.logsumexp(x), want[1])

        child = os.fork()
        if child == 0:
            signal.alarm(30)
            ok = same()
            sc.set_num_threads(2)
            os._exit(0 if ok and same() and sc.get_num_threads() == 2 else 3)
        _, status = os.waitpid(child, 0)
        assert same() and sc.get_num_threads() == 3
        sys.exit(os.waitstatus_to_exitcode(status) % 256)
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SOFTCARRY_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, "3"),
        ({"OMP_NUM_THREADS": "2"}, "2"),
        ({"OMP_NUM_THREADS": ""}, "cores"),
    ],
)
def test_the_environment_sets_the_default(environment, expected):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    done = run_python("import softcarry as sc; print(sc.get_num_threads())", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == (str(cores) if expected == "cores" else expected)
