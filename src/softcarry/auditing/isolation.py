"""One call in a fresh process, for calls that may kill it.

Some kernels divide by the number of keys, or read what is not there, and take the process with them. The call
is pickled by cloudpickle, so that functions of scripts and notebooks travel too, and runs under a time limit.
Run as a module, this file is the child.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from softcarry.errors import SoftcarryError


class NotPortableError(SoftcarryError):
    """The call can't be sent to another process; the message says why."""


class CrashedError(SoftcarryError):
    """The process died; the message names the signal."""


class OutOfTimeError(SoftcarryError):
    """The process gave no answer within the time limit."""


def call_in_fresh_process(function, /, *args, time_limit=120.0, **keywords):
    """Call a function in a process of its own.

    Parameters
    ----------
    function : callable
    *args, **keywords
        What to call it with. All of it must pickle, and so must the result or the exception.
    time_limit : float
        Seconds, the start of the process included.

    Returns
    -------
    object
        What the function returned.

    Raises
    ------
    NotPortableError
        If the call does not pickle, or does not unpickle over there.
    CrashedError
        If the process dies.
    OutOfTimeError
        If the time is over; the process is ended.
    Exception
        What the function itself raised.

    Examples
    --------
    >>> call_in_fresh_process(max, 2, 5)
    5
    """
    import cloudpickle

    try:
        call = cloudpickle.dumps((function, args, keywords))
    except Exception as error:
        msg = f"the call does not pickle ({type(error).__name__}: {error})"
        raise NotPortableError(msg) from None
    # The path goes first: what follows can only be unpickled where the same modules are importable.
    path = [entry or os.getcwd() for entry in sys.path]
    with tempfile.TemporaryDirectory(prefix="softcarry-") as folder:
        request, answer = Path(folder, "call"), Path(folder, "result")
        request.write_bytes(pickle.dumps((path, call)))
        command = [sys.executable, "-m", "softcarry.auditing.isolation", str(request), str(answer)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, timeout=time_limit, check=False
            )
        except subprocess.TimeoutExpired:
            msg = f"no answer from a fresh process within {time_limit:g} s"
            raise OutOfTimeError(msg) from None
        if done.returncode != 0 or not answer.exists():
            raise CrashedError(cause_of_death(done.returncode))
        kind, value = pickle.loads(answer.read_bytes())
    if kind == "result":
        return value
    raise value


def cause_of_death(returncode: int) -> str:
    """Say how a process ended, by its return code as ``subprocess`` gives it: negative for a signal.

    Examples
    --------
    >>> cause_of_death(-11), cause_of_death(3)
    ('killed by SIGSEGV', 'ended with exit status 3')
    """
    if returncode < 0:
        try:
            return f"killed by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"killed by signal {-returncode}"
    return f"ended with exit status {returncode}"


def _answer(call):
    try:
        function, args, keywords = pickle.loads(call)
    except Exception as error:
        return "error", NotPortableError(f"the call does not unpickle ({type(error).__name__}: {error})")
    try:
        return "result", function(*args, **keywords)
    except Exception as error:
        return "error", error


def _main(request, answer):
    path, call = pickle.loads(Path(request).read_bytes())
    sys.path[:] = path
    kind, value = _answer(call)
    try:
        content = pickle.dumps((kind, value))
        pickle.loads(content)
    except Exception:
        # An exception of an unusual class still says what it said.
        content = pickle.dumps(("error", RuntimeError(f"{type(value).__name__}: {value}")))
    Path(answer).write_bytes(content)


if __name__ == "__main__":
    # Through the package, so that what is pickled here belongs to a module that the parent knows too.
    from softcarry.auditing import isolation

    isolation._main(*sys.argv[1:])
