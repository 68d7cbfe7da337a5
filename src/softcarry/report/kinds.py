"""Kinds of fault: what each check asks, what a failure usually means, and public reports of the kind.

The reports are told in our own words. They are kinds, not verdicts: a subject that fails a check has a fault
like theirs, not necessarily theirs.
"""

from types import MappingProxyType
from typing import NamedTuple

_REPOSITORIES = {
    "ONNXim": "PSAL-POSTECH/ONNXim",
    "EasyContext": "jzhang38/EasyContext",
    "KernelBench": "ScalingIntelligence/KernelBench",
    "candle": "huggingface/candle",
    "cubecl": "tracel-ai/cubecl",
    "cudnn-frontend": "NVIDIA/cudnn-frontend",
    "executorch": "pytorch/executorch",
    "flash-attention": "Dao-AILab/flash-attention",
    "flashinfer": "flashinfer-ai/flashinfer",
    "flax": "google/flax",
    "iree": "iree-org/iree",
    "jax": "jax-ml/jax",
    "jax-js": "ekzhang/jax-js",
    "keras": "keras-team/keras",
    "llama.cpp": "ggml-org/llama.cpp",
    "mlir-air": "Xilinx/mlir-air",
    "mlx": "ml-explore/mlx",
    "onnxruntime": "microsoft/onnxruntime",
    "openvino": "openvinotoolkit/openvino",
    "pytorch": "pytorch/pytorch",
    "sglang": "sgl-project/sglang",
    "tensorflow": "tensorflow/tensorflow",
    "tiny-flash-attention": "66RING/tiny-flash-attention",
    "tinygrad": "tinygrad/tinygrad",
    "torch-spyre": "torch-spyre/torch-spyre",
    "tract": "sonos/tract",
    "transformers": "huggingface/transformers",
    "triton": "triton-lang/triton",
    "tt-metal": "tenstorrent/tt-metal",
    "vllm": "vllm-project/vllm",
}


class Fault(NamedTuple):
    """A public report of a fault.

    Attributes
    ----------
    reference : str
        Project and number, such as "pytorch#103963".
    what : str
        What happened, in our words.
    """

    reference: str
    what: str

    @property
    def url(self) -> str:
        """Where the report can be read.

        Examples
        --------
        >>> Fault("pytorch#103963", "").url
        'https://github.com/pytorch/pytorch/issues/103963'
        """
        project, number = self.reference.split("#")
        return f"https://github.com/{_REPOSITORIES[project]}/issues/{number}"


class Kind(NamedTuple):
    """What a check is about.

    Attributes
    ----------
    question : str
        What it asks of a kernel, in one line.
    meaning : str
        What a failure usually means.
    faults : tuple of Fault
        Public reports of the kind; none for checks that are about the audit itself.
    """

    question: str
    meaning: str
    faults: tuple[Fault, ...]


KINDS = MappingProxyType(
    {
        "EMPTY": Kind(
            "What does a row without keys get, and do other rows notice?",
            "A fully masked row is divided by l = 0 (NaN), or a finite fill value stands for −inf, so that "
            "masked keys share the weight equally (the mean of V).",
            (
                Fault("pytorch#103963", "SDPA gives NaN for the rows of a boolean mask that are all False"),
                Fault("onnxruntime#28904", "a row masked by a causal and a boolean mask gets the mean of V"),
                Fault("keras#21123", "a softmax over a fully masked row is uniform instead of 0"),
                Fault("mlx#2608", "the unfused path gives NaN for masked rows, the fused one 0"),
                Fault("flash-attention#978", "queries without keys get an lse of +inf"),
            ),
        ),
        "MASKREP": Kind(
            "Is one mask the same as booleans, as −inf and as large negative numbers?",
            "Fill values are added to scores and overflow, two of them add up to −inf, or a float mask is "
            "taken for a boolean one.",
            (
                Fault("flax#982", "a bias of −1e10 overflows in float16 and gives NaN"),
                Fault(
                    "transformers#27114", "a causal and a padding mask of the lowest number add up to −inf"
                ),
                Fault(
                    "transformers#31035",
                    "padded rows of a bfloat16 mask filled with the lowest number are NaN",
                ),
                Fault("tensorflow#55682", "a softmax after a mask of −1e9 gives equal weights"),
                Fault("openvino#31630", "a boolean mask is not read as in other libraries"),
            ),
        ),
        "TAIL": Kind(
            "Are lengths and head sizes right that fit no block?",
            "The last, partly filled block is read beyond its end, left unmasked, or left out.",
            (
                Fault("pytorch#159247", "keys beyond a length that is no multiple of 128 stay unmasked"),
                Fault("pytorch#147284", "a float64 softmax is wrong for certain odd widths from 513 to 1023"),
                Fault("jax#27224", "a Pallas kernel is right only when lengths are multiples of its block"),
                Fault("tiny-flash-attention#12", "wrong when length or head size is no power of two"),
            ),
        ),
        "RANGE": Kind(
            "How large may scores be?",
            "The maximum is not subtracted before the exponential, is subtracted after a rounding, or starts "
            "from a finite number that scores lie below.",
            (
                Fault(
                    "pytorch#62897", "the vectorised bfloat16 softmax on CPU forgot to subtract the maximum"
                ),
                Fault(
                    "pytorch#121558", "NaN for large bfloat16 inputs: the scaled maximum was rounded first"
                ),
                Fault("vllm#56578", "a softcap by a ratio of exponentials is NaN for large scores"),
                Fault("EasyContext#14", "a merge by log(1 + exp(d)) overflows"),
            ),
        ),
        "GROWTH": Kind(
            "How does the error grow with the number of keys?",
            "The running sum l or the running output o is kept in a 16-bit format and stops moving, or "
            "drifts.",
            (
                Fault("tract#2586", "a float16 row sum sticks at 2048: 10 to 38% error at 4096 to 8192 keys"),
                Fault("executorch#20090", "softmax adds up in bfloat16 and sticks at 256"),
                Fault("candle#3727", "the float16 softmax of 4096 equal scores sums to 2"),
                Fault("mlir-air#1600", "P·V summed in bfloat16 stops moving"),
                Fault(
                    "flash-attention#2250", "an accumulator narrower than float32 collapses at long context"
                ),
            ),
        ),
        "LSE": Kind(
            "Is the lse the natural log-sum-exp of the scaled scores, −inf without keys?",
            "Base 2 is handed out for base e, the scale is left out, or an empty row has a finite lse, which "
            "then has weight in a merge.",
            (
                Fault("pytorch#181645", "an lse that is off by ln 2: base 2 leaks out"),
                Fault("pytorch#134650", "the lse of an empty row was 0 instead of −inf"),
                Fault("flashinfer#4451", "empty rows return a finite lse of about −5e4"),
                Fault("tinygrad#17822", "the log-sum-exp of a row of −inf is NaN"),
            ),
        ),
        "POISON": Kind(
            "Does anything behind the mask, or beyond a length, reach the output?",
            "Masked values are multiplied by a weight of 0 instead of left out, and 0 · NaN is NaN; or "
            "memory beyond the length is read.",
            (
                Fault("vllm#641", "paged attention reads NaN beyond the context length"),
                Fault("vllm#43961", "the last page relies on 0 · x, and recycled pages hold NaN"),
                Fault("flash-attention#1745", "NaN in the padding of a KV cache comes through"),
                Fault("cudnn-frontend#624", "rows of V that were never written: P = 0, and 0 · NaN"),
                Fault("onnxruntime#20521", "a token step reads memory that was never written"),
            ),
        ),
        "CAUSAL": Kind(
            "Which keys does a causal mask or a window leave to each query?",
            "The mask is aligned top-left where users expect bottom-right (or the other way round), or a "
            "window is off by one.",
            (
                Fault("pytorch#144858", "one query beside many keys sees the first key only"),
                Fault("onnxruntime#29020", "CPU aligned bottom-right, CUDA and the specification top-left"),
                Fault("onnxruntime#25927", "a local window that is off by one"),
                Fault("mlx#2835", "the alignment flips when there are more queries than keys"),
            ),
        ),
        "GRAD": Kind(
            "Are the gradients finite and right?",
            "The backward pass recomputes P with another mask, lse or tail than the forward pass, or divides "
            "by the l of an empty row.",
            (
                Fault("pytorch#133671", "the CPU flash backward differs from the plain one at 49 keys"),
                Fault("pytorch#153799", "a backward pass gives NaN when a length is no multiple of 128"),
                Fault("triton#4541", "a backward pass that ignores causal=False"),
            ),
        ),
        "REF": Kind(
            "How far is the output from float64, beside a plain formula in that dtype?",
            "Something in between is rounded too early: scores, P, or the carry.",
            (
                Fault("tt-metal#51927", "2.6% error in decoding, invisible to a correlation test"),
                Fault("pytorch#151912", "compiled bfloat16 attention rounds in other places than eager"),
                Fault(
                    "flash-attention#1138", "which version is better depends on the dtype of the reference"
                ),
            ),
        ),
        "SCALE": Kind(
            "Are scale, softcap, bias and mask applied in the documented order?",
            "The bias or the mask is multiplied by the scale, the softcap comes after the mask, or the scale "
            "is ignored.",
            (
                Fault("onnxruntime#28379", "a softcap after the mask gives masked keys weight"),
                Fault("tt-metal#42694", "the mask is multiplied by the scale"),
                Fault("tt-metal#33304", "the scale argument is ignored"),
            ),
        ),
        "LAYOUT": Kind(
            "Do strided, expanded and broadcast arrays give the same as plain ones?",
            "Strides are taken for contiguous, or a mask that should be broadcast is indexed as if it were "
            "full.",
            (
                Fault("torch-spyre#4331", "views of q, k and v that are not contiguous are silently wrong"),
                Fault(
                    "onnxruntime#24017", "a wrong offset into a bias of one head and several batch entries"
                ),
                Fault("jax#28974", "a mask of shape [B, 1, 1, K] is not broadcast"),
            ),
        ),
        "INVAR": Kind(
            "Does a row depend on its batch, its neighbours, padding, chunks or threads?",
            "Another reduction order is chosen for another shape. That is legal, and breaks whoever relies "
            "on equal bits.",
            (
                Fault("jax#36570", "results depend on the padded length of K and V"),
                Fault("mlx#3573", "the output of one query changes when a chunk grows from 8 to 9"),
                Fault("sglang#25790", "decoding and prefill differ from 97 keys on"),
                Fault("vllm#51902", "deterministic, and still not the same in another batch"),
            ),
        ),
        "FPRINT": Kind(
            "Which bits do fixed inputs give, and what were they in the baseline?",
            "A new version, machine or library rounds or sums in another order.",
            (Fault("pytorch#183809", "bfloat16 attention on Arm changed its bits between two versions"),),
        ),
        "HEADMAP": Kind(
            "Which head of K and V does each query head use?",
            "Groups are tiled where they should be repeated, or all query heads use the first head.",
            (
                Fault("jax-js#180", "grouped heads were tiled instead of repeated"),
                Fault("ONNXim#34", "the head of K was the query head divided by the wrong number"),
            ),
        ),
        "HARNESS": Kind(
            "Would this audit notice if the kernel were wrong?",
            "A tolerance lies above the signal, or values that can't be compared are passed over.",
            (
                Fault("KernelBench#165", "with a tolerance of 1e-2 an output of zeros passes for a softmax"),
                Fault("cubecl#1070", "a test left out the elements where the reference was NaN"),
                Fault("mlir-air#1600", "a test with a single key that is not zero saw nothing"),
            ),
        ),
        "NONFIN": Kind(
            "Does a NaN or infinity that a row sees reach that row's output, and no other?",
            "A maximum or a clamp swallows NaN, or one bad row spoils a whole block.",
            (Fault("cubecl#1070", "NaN on one device only, hidden by a test that left NaN out"),),
        ),
        "ARGS": Kind(
            "Are shapes and dtypes that do not fit refused?",
            "Arguments are trusted, and memory beyond an array is read.",
            (Fault("pytorch#193728", "with V longer than K the CPU flash path reads beyond K"),),
        ),
        "DROP": Kind(
            "Does dropout keep the mean, and is it off when it should be?",
            "Kept weights are not divided by 1 − p, or dropout is applied in evaluation too.",
            (Fault("pytorch#124464", "dropout_p applies in evaluation mode as well"),),
        ),
        "RUN": Kind(
            "Does the subject's process live, answer in time and keep within its memory?",
            "A call ended the process, hung, or took more memory than the limit; what it would have shown is "
            "not known.",
            (Fault("pytorch#193728", "a read beyond an array, which may end the process"),),
        ),
        "CONTRACT": Kind(
            "Does the kernel take the dtypes and options that its contract promises?",
            "The contract promises more than the kernel has.",
            (),
        ),
        "PROFILE": Kind(
            "Is what was inferred about the kernel what it was in the baseline?",
            "The kernel, or the library below it, is built another way than before.",
            (),
        ),
        "BASELINE": Kind(
            "Can the report be compared with the baseline?",
            "The two audits asked for different dtypes or checks.",
            (),
        ),
    }
)
"""The kinds by the name of the check."""


def kind_of(check: str) -> Kind | None:
    """Return the kind of fault that a check looks for; None for a check that is not known here.

    Examples
    --------
    >>> kind_of("RANGE").question
    'How large may scores be?'
    """
    return KINDS.get(check)
