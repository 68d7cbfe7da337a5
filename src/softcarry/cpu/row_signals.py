"""Words that threads signal each other by, and loops that watch them outside the interpreter lock."""

import platform

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types

from softcarry.cpu.memory import pointer
from softcarry.cpu.simd import intrinsic

NONE, OFFERED, ASLEEP = 0, 1, 2
"""What a helper's word says: nothing, that there is work, or that the helper must be woken first."""

LINE = 64
"""Bytes of a cache line: each word has its own."""

_INT64 = ir.IntType(64)
_ARM = platform.machine().lower() in ("arm64", "aarch64")
_X86 = platform.machine().lower() in ("x86_64", "amd64")


@intrinsic
def _load(typingctx, address):
    """Load a 64-bit integer that another thread may change."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(pointer(builder, arguments[0], _INT64), "seq_cst", 8)

    return types.intp(types.intp), generate


@intrinsic
def _store(typingctx, address, number):
    """Store a 64-bit integer for another thread to see."""

    def generate(context, builder, signature, arguments):
        builder.store_atomic(arguments[1], pointer(builder, arguments[0], _INT64), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def _exchange(typingctx, address, number):
    """Store a 64-bit integer, and return what was there."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("xchg", pointer(builder, arguments[0], _INT64), arguments[1], "seq_cst")

    return types.intp(types.intp, types.intp), generate


@intrinsic
def _replace(typingctx, address, expected, number):
    """Store a 64-bit integer if what is there is as expected, and return whether it was."""

    def generate(context, builder, signature, arguments):
        address, expected, number = arguments
        place = pointer(builder, address, _INT64)
        result = builder.cmpxchg(place, expected, number, "seq_cst", "seq_cst")
        return builder.extract_value(result, 1)

    return types.boolean(types.intp, types.intp, types.intp), generate


@intrinsic
def _pause(typingctx):
    """Tell the processor that this is a loop that waits."""

    def generate(context, builder, signature, arguments):
        if _X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        elif _ARM:
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.hint")
            builder.call(function, [ir.Constant(ir.IntType(32), 1)])
        return context.get_dummy_value()

    return types.void(), generate


@njit(cache=True)
def exchange(word, number):
    """Store an integer at an address, and return what was there."""
    return _exchange(word, number)


@njit(cache=True)
def look(word):
    """Return the integer at an address."""
    return _load(word)


@njit(cache=True)
def withdraw(word):
    """Take an offer back, and return whether nobody has taken it."""
    return _replace(word, OFFERED, NONE)


@njit(nogil=True, cache=True)
def await_end(busy, patience):
    """Wait until a word is 0, and return whether it is after so many looks."""
    for _ in range(patience):
        if _load(busy) == 0:
            return True
        _pause()
    return False


@njit
def await_helpers(counter, helpers):
    """Withdraw the offers that no helper has taken, and wait for the others to end, for a limited time.

    The words of the helpers stand behind the counter and the line that has the patience to wait with. The
    caller waits here, outside the interpreter lock, since a helper that has ended takes it for a moment,
    and a thread that waits for it sleeps.
    """
    patience = _load(counter + LINE)
    for i in range(helpers):
        offer = counter + (2 + 2 * i) * LINE
        if not _replace(offer, OFFERED, NONE):
            for _ in range(patience):
                if _load(offer + LINE) == 0:
                    break
                _pause()


@njit(nogil=True, cache=True)
def await_offer(offer, busy, counter, patience):
    """Say that the last work is done, and wait for more.

    Return whether there is some and it is taken, which ``busy`` then tells; otherwise ``offer`` says that the
    helper sleeps. An offer is taken once the first unit has been claimed: the caller has then left the
    interpreter lock, which it would be waited for to do.
    """
    _store(busy, 0)
    looks = 0
    while True:
        if _load(offer) == OFFERED:
            if _load(counter) > 0:
                _store(busy, 1)
                if _replace(offer, OFFERED, NONE):
                    return True
                _store(busy, 0)
        elif looks >= patience and _replace(offer, NONE, ASLEEP):
            return False
        looks += 1
        _pause()
