"""A report with everything in it: 19 checks, three dtypes, a finding of each check, hostile names."""

from softcarry.report.model import Curve, Fact, Finding, Report, Skip, Verdict

DTYPES = ("float32", "bfloat16", "float16")
CHECKS = (
    "EMPTY", "MASKREP", "TAIL", "RANGE", "GROWTH", "LSE", "POISON", "CAUSAL", "GRAD", "REF", "SCALE",
    "LAYOUT", "INVAR", "FPRINT", "HEADMAP", "HARNESS", "NONFIN", "ARGS", "DROP",
)  # fmt: skip
HOSTILE = "<script>alert(1)</script>"
AXES = (
    "alone or in a batch", "neighbours", "query chunks", "padded keys", "threads", "repeated runs", "splits",
    "key order",
)  # fmt: skip
CASES = (
    "boolean mask", "additive mask of −inf", "causal mask with tq > tk", "boolean mask beside a causal one",
    "no keys at all (tk = 0)",
)  # fmt: skip
ENVIRONMENT = {
    "time": "2025-01-01T00:00:00+00:00",
    "softcarry": "0.1",
    "python": "3.11",
    "system": "Linux x86_64",
    "cpu": "one",
    "threads": 2,
    "libraries": {"numpy": "2.4", "torch": "2.13.0+cpu"},
    "seed": 0,
    "contract": {
        "empty_rows": "zero", "lse_empty": "-inf", "carry_format": None, "causal": None,
        "masked_values": "hidden", "invariant": [],
        "dtypes": [], "options": [], "longest_n": None,
    },
}  # fmt: skip


def subject(name="mine", **more):
    """Describe a subject by the schema."""
    return {
        "name": name,
        "arrays": "torch",
        "layout": "bhtd",
        "dtypes": list(DTYPES),
        "output_dtypes": {dtype: dtype for dtype in DTYPES},
        "options": {"mask": "attn_mask", "scale": "scale"},
        "returns_lse": True,
        "lse_unit": "e",
        "causal": "top-left",
        "control": False,
    } | more


def evidence(check, dtype):
    """Make evidence of every form that probes record."""
    return {
        "call": f'q (1, 2, 4, 16), "{check}" & <b>',
        "ratios": {"normal": 0.1, "positive": 90.0, "outlier channel": 3.0, dtype: 1.5},
        "errors": {"normal": {"largest": 1.25, "rms": float("nan")}},
        "rows": [1, 4, 5, 7],
        "output": [0.0625] * 16,
        "lse": float("-inf"),
        "nothing": None,
    }


def full_report(name="mine", checks=CHECKS, **more):
    """Make a report in which every check found something in every dtype but one warning and some skips."""
    findings = tuple(
        Finding(
            check, "warning" if check == "INVAR" else "error", f"{check} is wrong: a < b",
            evidence(check, dtype), "mend <it>", dtype,
        )
        for dtype in DTYPES
        for check in checks
        if check not in ("REF", "DROP")
    )  # fmt: skip
    outcomes = {"INVAR": "warn", "REF": "pass", "DROP": "skip"}
    n = tuple(2**k for k in range(6, 17))
    return Report(
        subject=subject(name, **more),
        findings=findings,
        verdicts=tuple(
            Verdict(check, dtype, outcomes.get(check, "fail"), 7) for dtype in DTYPES for check in checks
        ),
        profile={dtype: profile() for dtype in DTYPES},
        curves=tuple(
            Curve(title, n, [1e-7 * x for x in n], [1e-5 * x for x in n], check="GROWTH", dtype=dtype)
            for dtype in DTYPES
            for title in ("error on normal scores", "lost share of l or o on equal scores")
        ),
        skipped=tuple(Skip("DROP", "all of it", "the kernel takes no dropout", dtype) for dtype in DTYPES),
        environment=ENVIRONMENT,
    )


def profile():
    """Make facts of every form that probes record."""
    outcomes = ("same", "within the bound", "different", "skipped")
    return {
        "invariance": Fact(
            {
                axis: {
                    "bitwise": index % 4 == 0,
                    "largest difference": 1e-7 * index,
                    "bound": None if index % 4 == 3 else 1e-6,
                    "stage": "P·V" if index % 4 == 2 else None,
                    "outcome": outcomes[index % 4],
                }
                for index, axis in enumerate(AXES)
            },
            1.0,
            "seen",
        ),
        "empty row table": Fact(
            [{"case": case, "output": kind, "lse": "-inf" if kind == "ZERO" else "finite"}
             for case, kind in zip(CASES, ("ZERO", "ZERO", "NAN", "MEAN_ALL", "ZERO"), strict=True)],
            1.0, "class of the output and of the lse",
        ),
        "fingerprint": Fact({"plain": "ab" * 32, "causal": "cd" * 32}, 1.0, "sha256"),
        "fingerprint sample": Fact({"plain": "0f" * 200}, 1.0, "bits"),
        "kv head map": Fact({"4/2": [0, 0, 1, 1]}, 1.0, "indices"),
        "supports": Fact([[0], [0, 1]], 0.5, "keys with weight"),
        "knee": Fact(None, 0.5, "no step"),
        "scale": Fact(0.25, 0.9, "slope"),
    }  # fmt: skip
