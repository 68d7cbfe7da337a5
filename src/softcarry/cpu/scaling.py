"""p·2^n by the instruction that AVX-512 has for it, and by a product elsewhere: the same, if it is normal."""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, config, types

from softcarry.cpu.simd import constant, intrinsic

_INT32 = ir.IntType(32)
_REGISTER = 512


def _has_instruction() -> bool:
    """Whether code is compiled for AVX-512: that of this host, unless Numba was told of another processor."""
    told = (getattr(config, name, None) for name in ("CPU_NAME", "CPU_FEATURES"))
    if any(value is not None for value in told):
        return False
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))


def _by_instruction(builder: Any, p: Any, n: Any, bits: int) -> Any:
    lanes = _REGISTER // bits
    register = ir.VectorType(p.type.element, lanes)
    mask = ir.IntType(lanes)
    kind = ir.FunctionType(register, [register, register, register, mask, _INT32])
    name = f"llvm.x86.avx512.mask.scalef.p{'s' if bits == 32 else 'd'}.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    undefined = ir.Constant(p.type, ir.Undefined)
    parts = []
    for start in range(0, p.type.count, lanes):
        places = ir.Constant(ir.VectorType(_INT32, lanes), list(range(start, start + lanes)))
        a, b = (builder.shuffle_vector(v, undefined, places) for v in (p, n))
        # All lanes, rounded as the processor is set to.
        options = [ir.Constant(register, ir.Undefined), ir.Constant(mask, -1), ir.Constant(_INT32, 4)]
        parts.append(builder.call(function, [a, b, *options]))
    while len(parts) > 1:
        both = ir.Constant(
            ir.VectorType(_INT32, 2 * parts[0].type.count), list(range(2 * parts[0].type.count))
        )
        parts = [builder.shuffle_vector(parts[i], parts[i + 1], both) for i in range(0, len(parts), 2)]
    return parts[0]


@intrinsic
def scaled(typingctx, p, n, shifted):
    """p·2^n, which must be a normal number; ``shifted`` is n + 1.5·2^t, t the stored mantissa bits."""
    bits, stored, bias = (32, 23, 127) if p.scalar == types.float32 else (64, 52, 1023)

    def generate(context, builder, signature, arguments):
        p_, n_, shifted_ = arguments
        if _has_instruction() and p.lanes * bits % _REGISTER == 0:
            return _by_instruction(builder, p_, n_, bits)
        kind = ir.VectorType(ir.IntType(bits), p.lanes)
        raised = builder.add(builder.bitcast(shifted_, kind), constant(kind, bias))
        return builder.fmul(p_, builder.bitcast(builder.shl(raised, constant(kind, stored)), p.llvm))

    return p(p, p, p), generate
