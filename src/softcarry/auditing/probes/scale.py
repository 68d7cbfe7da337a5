"""SCALE: are scores scaled, capped and biased as they should be, and in that order?

Question
    What is the scale by default, and is the one that is given used, once? Is an additive mask scaled or
    capped with the scores? Is the cap before the masks, as tanh, and finite for large scores?
Input
    Products q·k that are exact in every dtype; values that show the weight of each key. The default scale for
    d = 64, 7, 40, 80, 96 and 128; scales 1, 0.125, 0.3, 0 and −0.5, alone, beside masks, and among 700 keys;
    additive masks of size 3 with scale ≠ 1; caps of 2 with scores of ±4 and ±400, with an additive mask, and
    with keys hidden by a boolean mask, by −inf and by a causal mask.
Conclusion
    The effective scale is the slope of ln weight over q·k. A rule that explains all weights that are wrong is
    named: scale ignored, applied twice, of the padded d, in base 2; masks multiplied by the scale; caps after
    the masks, before the scale, or as a clip.
Tolerance
    The master bound on each weight, for which one non-zero product a score leaves Σ|q||k| = |q·k|; for capped
    scores also an error of 2^-11 of the tanh, that of the fast instruction of GPUs.
Source
    The order: ONNX opset 24 errata (onnx#7867, #7913): scale, cap, then masks. 2^-11: PTX ISA, tanh.approx.
Public faults of this kind
    tt-metal#42694 (mask multiplied by the scale), tt-metal#33304 (scale ignored), onnxruntime#28379 (cap
    after the mask), vllm#56578 (NaN beyond 88 caps), pytorch#181645 (base 2).
"""

import math

import numpy as np

from softcarry.auditing.examination import Examination
from softcarry.auditing.probes._scores import HEADS, Case, Fault, judge, read, scores

_DEPTHS = (64, 7, 40, 80, 96, 128)
_SCALES = (1.0, 0.125, 0.3, 0.0, -0.5)
_DEPTH = 32  # 1/√32 is no power of two, and none of the scales
_LONG = 700
_STEPS = np.array([0.0, 0.25, -0.25, 1.0, -1.0, 3.0, -3.0])
_BIAS = np.array([1.0, 3.0, -1.0, 0.0, 1.0, -3.0, -0.25])
_HIDDEN = np.array([False, True, False, False, True, True, False])
_CAP = 2.0
_PADS = (8, 16, 32, 64, 128, 256)
_FORMATS = ("bfloat16", "float16")
_LOG2E = 1.0 / math.log(2.0)


def probe(examination: Examination) -> None:
    """Examine scale, cap and bias.

    Parameters
    ----------
    examination : Examination
        Fact "default scale", and at most one finding a kind of fault go to it.
    """
    wrong = _examine_default(examination)
    if examination.can("scale"):
        wrong += _examine_given(examination)
    else:
        examination.skip("scale", examination.lacks("scale"))
    if not wrong:  # what is wrong already would be found again under masks and caps
        wrong = _examine_bias(examination)
        _examine_cap(examination, biased=not wrong)


def _products(scale):
    """Products whose scores are about the steps: a power of two times them."""
    return _STEPS * 2.0 ** round(-math.log2(abs(scale)))


def _examine_default(examination):
    depths = _DEPTHS[:3] if examination.quick else _DEPTHS
    readings = read(examination, [Case(_products(1.0 / math.sqrt(d)), d) for d in depths])
    wrong = judge(examination, "the default scale", readings, list(_faults_of_default()))
    if readings and not wrong:
        seen = ", ".join(str(reading.case.depth) for reading in readings)
        examination.fact("default scale", "1/√d", 1.0, f"weights for d = {seen}")
    return wrong


def _faults_of_default():
    own = "multiply the scores by 1/√d, once, with the d of q before any padding"

    def of(factor):
        return lambda case: scores(case, factor(case.depth))

    yield Fault("the default scale is 1: scores are not divided by √d", of(lambda d: 1.0), own)
    yield Fault("the default scale is 1/d: 1/√d is applied twice", of(lambda d: 1.0 / d), own)
    yield Fault("the default scale is d^(−1/4): of q and k only one is scaled", of(lambda d: d**-0.25), own)
    yield Fault(
        "the default scale is 1/√(heads · d), the width of all heads", of(lambda d: (HEADS * d) ** -0.5), own
    )
    for pad in _PADS:
        yield Fault(
            f"the default scale is that of d padded to a multiple of {pad}",
            of(lambda d, pad=pad: (-(-d // pad) * pad) ** -0.5),
            own,
        )
    yield Fault(
        "the default scale is that of d padded to a power of two",
        of(lambda d: (2.0 ** math.ceil(math.log2(d))) ** -0.5),
        own,
    )
    yield from _faults_of_base(lambda case: case.factor)
    for name in _FORMATS:
        yield Fault(
            f"the default scale is rounded to {name}", of(lambda d, name=name: _rounded(d**-0.5, name)), own
        )


def _faults_of_base(factor):
    own = "with exp2, multiply the scores by log2 e, once"
    yield Fault(
        "weights are powers of 2, not of e: log2 e is missing",
        lambda case: scores(case, factor(case) / _LOG2E),
        own,
    )
    yield Fault("log2 e is multiplied in twice", lambda case: scores(case, factor(case) * _LOG2E), own)


def _rounded(number, name):
    from softcarry.numerics._formats import get_format

    return float(get_format(name).round(np.float64(number)))


def _examine_given(examination):
    cases = [Case(_products(scale or 2.0**-2.5), _DEPTH, scale) for scale in _SCALES]
    cases.append(Case(_products(0.5), 64, 0.5, keys=_LONG))
    if examination.can("mask"):
        cases.append(Case(_products(0.5), _DEPTH, 0.5, hidden=_HIDDEN))
    if examination.can("causal"):
        cases.append(Case(_products(0.5), _DEPTH, 0.5, causal=True))
    return judge(examination, "the scale", read(examination, cases), list(_faults_of_given()))


def _faults_of_given():
    own = "multiply the scores by the scale that is given, and by nothing else; 1/√d is for None only"

    def of(factor):
        return lambda case: scores(case, factor(case.scale, case.depth**-0.5))

    yield Fault(
        "a scale of 0 counts as none: 1/√d is used",
        of(lambda scale, default: scale or default),
        "test the scale for None, not for truth",
    )
    yield Fault("the scale is ignored: 1/√d is used", of(lambda scale, default: default), own)
    yield Fault("the scale is ignored: scores are not scaled", of(lambda scale, default: 1.0), own)
    yield Fault("the scale is applied on top of 1/√d", of(lambda scale, default: scale * default), own)
    yield Fault("the scale is applied twice", of(lambda scale, default: scale * scale), own)
    yield Fault("scores are divided by the scale", of(lambda scale, default: 1 / (scale or math.inf)), own)
    yield Fault("the sign of the scale is lost", of(lambda scale, default: abs(scale)), own)
    yield Fault(
        "the square root of the scale is applied: of q and k only one is scaled",
        of(lambda scale, default: math.copysign(math.sqrt(abs(scale)), scale)),
        own,
    )
    yield from _faults_of_base(lambda case: case.factor)
    for name in _FORMATS:
        yield Fault(
            f"the scale is rounded to {name}",
            of(lambda scale, default, name=name: _rounded(scale, name)),
            own,
        )


def _examine_bias(examination):
    if not examination.can("mask"):
        examination.skip("additive masks", examination.lacks("mask"))
        return []
    cases = [Case(_products(0.125), 64, bias=_BIAS), Case(_products(0.125), 64, bias=_BIAS, keys=_LONG)]
    if examination.can("scale"):
        cases.append(Case(_products(0.5), _DEPTH, 0.5, bias=_BIAS))
    own = "add the mask to the scores after they have been scaled"

    def of(factor):
        return lambda case: scores(case, bias_factor=factor(case.factor))

    faults = [
        Fault("the mask is multiplied by the scale", of(lambda scale: scale), own),
        Fault("the mask is divided by the scale", of(lambda scale: 1.0 / scale), own),
        Fault("a finite additive mask is ignored", of(lambda scale: 0.0), own),
        Fault("the mask is subtracted", of(lambda scale: -1.0), own),
        Fault("the mask is added twice", of(lambda scale: 2.0), own),
        Fault("the mask is added in base 2: log2 e is missing", of(lambda scale: 1.0 / _LOG2E), own),
        Fault(
            "beside a mask the scores are not scaled",
            lambda case: scores(case, 1.0),
            "scale the scores in every path",
        ),
        Fault(
            "beside a mask the default scale is used",
            lambda case: scores(case, case.depth**-0.5),
            "scale the scores in every path",
        ),
    ]
    return judge(examination, "an additive mask", read(examination, cases), faults)


def _examine_cap(examination, *, biased):
    if not examination.can("softcap"):
        examination.skip("softcap", examination.lacks("softcap"))
        return
    steps = _products(0.125)
    cases = [Case(steps, 64, softcap=_CAP), Case(100.0 * steps, 64, softcap=_CAP)]
    if examination.can("scale"):
        cases.append(Case(_products(0.5), _DEPTH, 0.5, softcap=_CAP, keys=_LONG))
    if examination.can("mask"):
        cases.append(Case(steps, 64, softcap=_CAP, hidden=_HIDDEN))
    if examination.can("mask") and biased:
        cases.append(Case(steps, 64, softcap=_CAP, bias=_BIAS))
        cases.append(Case(steps, 64, softcap=_CAP, hidden=_HIDDEN, additive=True))
    if examination.can("causal"):
        cases.append(Case(steps, 64, softcap=_CAP, causal=True))
    judge(examination, "softcap", read(examination, cases), list(_faults_of_cap()))


def _faults_of_cap():
    own = "cap the scaled scores, c · tanh(s / c), and mask them after that"

    def of(cap):
        def rule(case):
            scaled = case.spread(case.products)
            bias = 0.0 if case.bias is None else case.spread(case.bias)
            return cap(scaled, case.factor, bias, case.softcap)

        return rule

    after = of(lambda x, scale, bias, c: c * np.tanh((scale * x + bias) / c))
    yield Fault("softcap is applied after the mask", after, own, lambda case: -case.softcap)
    yield Fault("softcap is applied after the mask is added", after, own)
    yield Fault("softcap is accepted and ignored", of(lambda x, scale, bias, c: scale * x + bias), own)
    yield Fault(
        "softcap is applied before the scale",
        of(lambda x, scale, bias, c: scale * c * np.tanh(x / c) + bias),
        own,
    )
    yield Fault("capped scores are not scaled", of(lambda x, scale, bias, c: c * np.tanh(x / c) + bias), own)
    yield Fault(
        "scores are not multiplied back by the cap: tanh(s / c)",
        of(lambda x, scale, bias, c: np.tanh(scale * x / c) + bias),
        own,
    )
    yield Fault(
        "scores are not divided by the cap: c · tanh(s)",
        of(lambda x, scale, bias, c: c * np.tanh(scale * x) + bias),
        own,
    )
    yield Fault(
        "softcap clips the scores instead of bending them",
        of(lambda x, scale, bias, c: np.clip(scale * x, -c, c) + bias),
        own,
    )
